#pragma once

#include "base/simd/simd.h"

/// Targets of kernel sources. Such a source contains its kernels once, in Google Highway's vector
/// operations or as plain loops, and is compiled again for each target:
///
///     #define HWY_TARGET_INCLUDE "base/simd/bit_mask_kernels.cpp"  // the source itself
///     #include "base/simd/targets.h"
///     #include "base/simd/lanes.h"
///
///     HWY_BEFORE_NAMESPACE();
///     namespace lockstep::HWY_NAMESPACE { ... constexpr Kernels kKernels{...}; }
///     HWY_AFTER_NAMESPACE();
///
///     #if HWY_ONCE
///     const Kernels& kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }
///     #endif
///
/// All other includes precede HWY_BEFORE_NAMESPACE(): functions of other headers must not get
/// instructions that the machine may lack. lockstep_kernels() in CMake sets the options of such
/// sources. Only they include this header and Highway, whose library is not linked.
#define HWY_IS_DEBUG_BUILD 0  // its own checks would call that library

#if defined(__x86_64__)

#define HWY_COMPILE_ALL_ATTAINABLE
// Instructions that base/simd/simd.cpp does not ask for. AVX3_DL has more of them (VAES), but g++
// generates those only for encryption.
#define HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_F16C
#define HWY_BROKEN_EMU128 1  // the portable path is Highway's scalar target with every compiler
#define HWY_WANT_AVX3_DL     // Highway's name for AVX-512 with VBMI2
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)

/// Selects a path's object of this name.
#define LOCKSTEP_OF_PATH(path, ...)                     \
  ((path) == SimdPath::kAvx512 ? N_AVX3_DL::__VA_ARGS__ \
   : (path) == SimdPath::kAvx2 ? N_AVX2::__VA_ARGS__    \
                               : N_SCALAR::__VA_ARGS__)

#else

// The compiler's own target (NEON on 64-bit ARM) is the only path. The kernels need vectors of a
// constant size.
#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE_256 | HWY_SVE2 | HWY_SVE2_128 | HWY_RVV)
#define LOCKSTEP_OF_PATH(path, ...) (static_cast<void>(path), HWY_STATIC_DISPATCH(__VA_ARGS__))

#endif

#include <hwy/foreach_target.h>
