// Portable path, and the choice among the paths.
#include "data/images/pixel_loops.h"

namespace lockstep::data {
namespace {

LOCKSTEP_PIXEL_KERNELS(, pixel_loops::Eight)

void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {
  pixel_loops::scale(in, 0, num, by, shift, out);
}

void scale_in_turn(const uint8_t* in, int64_t num, const ChannelNumbers& by, float* out) {
  constexpr int64_t kNum = ChannelNumbers::kNum;
  int64_t i = 0;
  for (; i + kNum <= num; i += kNum) pixel_loops::scale_rest(in + i, kNum, by, out + i);
  pixel_loops::scale_rest(in + i, num - i, by, out + i);
}

void columns_3(const float* in, const Taps& taps, int64_t num_out, float* const* outs) {
  pixel_loops::columns_3(in, taps, 0, num_out, outs);
}

}  // namespace

const PixelKernels& portable_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale,      scale_in_turn, scale_3,
                                         blend_rows, columns_1,     columns_3};
  return kKernels;
}

const PixelKernels& pixel_kernels(SimdPath path) {
  switch (path) {
    case SimdPath::kAvx512:
      return avx512_pixel_kernels();
    case SimdPath::kAvx2:
      return avx2_pixel_kernels();
    default:
      return portable_pixel_kernels();
  }
}

}  // namespace lockstep::data
