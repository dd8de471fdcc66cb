#include "data/images/pixel_loops.h"

namespace lockstep::data {
namespace {

LOCKSTEP_PIXEL_KERNELS()

void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {
  pixel_loops::scale(in, 0, num, by, shift, out);
}

}  // namespace

const PixelKernels& portable_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale, scale_3, blend_rows, columns_1, columns_3};
  return kKernels;
}

const PixelKernels& pixel_kernels(SimdPath path) {
  return path == SimdPath::kPortable ? portable_pixel_kernels() : avx2_pixel_kernels();
}

}  // namespace lockstep::data
