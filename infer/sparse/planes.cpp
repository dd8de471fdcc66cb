#include "infer/sparse/planes.h"

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace lockstep::infer {
namespace {

/// Items after the last channel: kernels read whole vectors.
constexpr int64_t kSlack = 64;
/// Smallest number of pixels for a thread of its own.
constexpr int64_t kPixelGrain = 1 << 15;

int64_t aligned(int64_t num_items) {
  return (num_items + Planes::kAlign - 1) / Planes::kAlign * Planes::kAlign;
}

}  // namespace

Planes Planes::make(int64_t num_images, at::IntArrayRef height_width, at::IntArrayRef padding) {
  Planes planes{.num_images = num_images, .height = height_width[0], .width = height_width[1]};
  planes.row = planes.width + padding[1];
  planes.image = (planes.height + padding[0]) * planes.row;
  planes.lead = aligned(padding[0] * planes.row + padding[1]);
  planes.stride = planes.lead + aligned(num_images * planes.image);
  // An odd number of cache lines: channels at the same pixel then use different cache sets.
  if (planes.stride / kAlign % 2 == 0) planes.stride += kAlign;
  return planes;
}

at::Tensor Planes::allocate(int64_t num_channels, std::optional<float> fill) const {
  const int64_t num_items = num_channels * stride + lead + kSlack;
  const at::Tensor storage =
      fill ? at::full({num_items}, *fill, at::kFloat) : at::empty({num_items}, at::kFloat);
  if (!fill) {
    auto* const items = storage.mutable_data_ptr<float>();
    const int64_t end = lead + aligned(extent());
    std::fill(items, items + lead, 0.0F);
    for (int64_t c = 1; c <= num_channels; ++c)
      std::fill(items + (c - 1) * stride + end, items + c * stride + lead, 0.0F);
    std::fill(items + num_items - kSlack, items + num_items, 0.0F);
  }
  return storage.as_strided({num_images, num_channels, height, width}, {image, stride, row, 1},
                            lead);
}

void copy_pixels(const at::Tensor& from, const at::Tensor& to) {
  const int64_t num_channels = from.size(1), height = from.size(2), width = from.size(3);
  const auto* const source = from.const_data_ptr<float>();
  auto* const target = to.mutable_data_ptr<float>();
  const int64_t from_x = from.stride(3), to_x = to.stride(3);
  const int64_t grain =
      std::max<int64_t>(1, kPixelGrain / std::max<int64_t>(1, num_channels * width));
  at::parallel_for(0, from.size(0) * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* s = source + i / height * from.stride(0) + i % height * from.stride(2);
      float* t = target + i / height * to.stride(0) + i % height * to.stride(2);
      for (int64_t c = 0; c < num_channels; ++c, s += from.stride(1), t += to.stride(1))
        if (from_x == 1 && to_x == 1)
          std::memcpy(t, s, static_cast<size_t>(width) * sizeof(float));
        else
          for (int64_t x = 0; x < width; ++x) t[x * to_x] = s[x * from_x];
    }
  });
}

}  // namespace lockstep::infer
