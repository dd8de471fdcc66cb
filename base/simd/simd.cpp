#include "base/simd/simd.h"

namespace lockstep {

std::vector<SimdPath> simd_paths() {
  std::vector<SimdPath> paths{SimdPath::kPortable};
#if defined(__x86_64__)
  // __builtin_cpu_supports() is true if both processor and system support the instructions.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("popcnt"))
    paths.push_back(SimdPath::kAvx2);
  if (paths.size() == 2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bitalg") &&
      __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni"))
    paths.push_back(SimdPath::kAvx512);
#endif
  return paths;
}

SimdPath fastest_simd_path() {
  static const SimdPath fastest = simd_paths().back();
  return fastest;
}

std::string_view name_of(SimdPath path) {
  if (path == SimdPath::kAvx512) return "AVX-512";
  return path == SimdPath::kAvx2 ? "AVX2" : "portable";
}

}  // namespace lockstep
