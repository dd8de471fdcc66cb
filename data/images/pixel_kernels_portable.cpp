#include "data/images/pixel_loops.h"

namespace lockstep::data {
namespace {

LOCKSTEP_PIXEL_KERNELS()

}  // namespace

const PixelKernels& portable_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale, scale_3, add_rows, columns_1, columns_3};
  return kKernels;
}

const PixelKernels& pixel_kernels(SimdPath path) {
  return path == SimdPath::kPortable ? portable_pixel_kernels() : avx2_pixel_kernels();
}

}  // namespace lockstep::data
