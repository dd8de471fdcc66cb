#include "data/images/pixel_loops.h"

namespace lockstep::data {
namespace {

LOCKSTEP_PIXEL_KERNELS()

void add_rows(const uint8_t* const* rows, const float* weights, int64_t num, bool adds,
              float* out) {
  pixel_loops::add_rows(rows, weights, 0, num, adds, out);
}

}  // namespace

const PixelKernels& portable_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale, scale_3, add_rows, columns_1, columns_3};
  return kKernels;
}

const PixelKernels& pixel_kernels(SimdPath path) {
  return path == SimdPath::kPortable ? portable_pixel_kernels() : avx2_pixel_kernels();
}

}  // namespace lockstep::data
