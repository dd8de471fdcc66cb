#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

/// Which instructions a kernel is written in. Results are the same bits on every path.
enum class SimdPath {
  kPortable,  ///< C++ for any machine
  kAvx2,      ///< x86-64 with AVX2, FMA, BMI 1 and 2 (Haswell, Zen and later)
  kAvx512,    ///< x86-64 with AVX-512 F, BW, DQ, VL and VBMI2 (Ice Lake, Zen 4 and later)
};

/// What this machine can run: the portable path first, the fastest last.
std::vector<SimdPath> simd_paths();

/// The fastest of simd_paths(); asked of the processor once.
SimdPath fastest_simd_path();

/// portable, AVX2, AVX-512.
std::string_view name_of(SimdPath path);

}  // namespace lockstep
