#include "data/images/pixel_loops.h"

#include "base/bits/avx2.h"

namespace lockstep::data {

#if defined(__x86_64__)

namespace {

LOCKSTEP_PIXEL_KERNELS(LOCKSTEP_AVX2)

}  // namespace

const PixelKernels& avx2_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale, scale_3, add_rows, columns_1, columns_3};
  return kKernels;
}

#else

const PixelKernels& avx2_pixel_kernels() { return portable_pixel_kernels(); }

#endif

}  // namespace lockstep::data
