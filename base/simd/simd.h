#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

/// Instruction set of a kernel. Results are the same bits with each.
enum class SimdPath {
  kPortable,  ///< any machine: scalar on x86-64, the compiler's own target elsewhere (NEON on ARM)
  kAvx2,      ///< x86-64 with AVX2, FMA, BMI 1 and 2 (Haswell, Zen and later)
  kAvx512,    ///< x86-64 with AVX-512 up to VBMI2, VPOPCNTDQ and VNNI (Ice Lake, Zen 4 and later)
};

/// Returns what this machine can run: the portable path first, the fastest last.
std::vector<SimdPath> simd_paths();

/// Returns the fastest of simd_paths(); the processor is queried once.
SimdPath fastest_simd_path();

/// Returns "portable", "AVX2" or "AVX-512".
std::string_view name_of(SimdPath path);

}  // namespace lockstep
