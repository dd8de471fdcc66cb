#include "infer/sparse/planes.h"

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include "infer/sparse/kept_kernels.h"

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

at::Tensor Planes::allocate(int64_t num_channels, std::optional<int32_t> between,
                            at::ScalarType dtype, Arena* arena) const {
  const int64_t num_items = num_channels * stride + lead + kSlack;
  const auto block = arena->take(num_items * static_cast<int64_t>(sizeof(int32_t)));
  auto* const first = static_cast<int32_t*>(block.get()) + lead;
  const int64_t num_rows = between ? num_images * height : 0;
  for (int64_t c = 0; c < num_channels && num_rows > 0; ++c) {
    int32_t* const pixels = first + c * stride;
    for (int64_t i = 1; i < num_rows; ++i)
      std::fill(pixels + (i - 1) / height * image + (i - 1) % height * row + width,
                pixels + i / height * image + i % height * row, *between);
    std::fill(pixels + extent(), pixels + aligned(extent()), *between);
  }
  return at::from_blob(
      first, {num_images, num_channels, height, width}, {image, stride, row, 1},
      [block](void* /*first*/) {}, dtype);
}

void Planes::pad(const at::Tensor& channels, int32_t bits) const {
  if (channels.numel() == 0) return;
  auto* const first = static_cast<int32_t*>(channels.mutable_data_ptr());
  const int64_t num_channels = channels.size(1), end = std::max<int64_t>(0, aligned(extent()));
  at::parallel_for(0, num_channels, kPixelGrain / kSlack, [&](int64_t begin_C, int64_t end_C) {
    for (int64_t c = begin_C; c < end_C; ++c) {
      std::fill(first + c * stride - lead, first + c * stride, bits);
      const int64_t next = c + 1 < num_channels ? stride - lead : stride + kSlack - lead;
      std::fill(first + c * stride + end, first + c * stride + std::max(end, next), bits);
    }
  });
}

void copy_pixels(const at::Tensor& from, const at::Tensor& to) {
  const int64_t num_channels = from.size(1), height = from.size(2), width = from.size(3);
  const auto* const source = static_cast<const int32_t*>(from.const_data_ptr());
  auto* const target = static_cast<int32_t*>(to.mutable_data_ptr());
  const int64_t from_x = from.stride(3), to_x = to.stride(3);
  if (to_x == 1 && (from_x == 1 || from_x == 2)) {  // channel by channel: each row is one copy
    const auto even_items = kept_kernels(fastest_simd_path()).even_items;
    const int64_t pixels = std::max<int64_t>(1, height * width);
    at::parallel_for(0, from.size(0) * num_channels, std::max<int64_t>(1, kPixelGrain / pixels),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i) {
                         const int64_t n = i / num_channels, c = i % num_channels;
                         const int32_t* s = source + n * from.stride(0) + c * from.stride(1);
                         int32_t* t = target + n * to.stride(0) + c * to.stride(1);
                         for (int64_t y = 0; y < height;
                              ++y, s += from.stride(2), t += to.stride(2))
                           if (from_x == 2)
                             even_items(s, width, t);
                           else
                             std::memcpy(t, s, static_cast<size_t>(width) * sizeof(int32_t));
                       }
                     });
    return;
  }
  const int64_t grain =
      std::max<int64_t>(1, kPixelGrain / std::max<int64_t>(1, num_channels * width));
  at::parallel_for(0, from.size(0) * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* s = source + i / height * from.stride(0) + i % height * from.stride(2);
      int32_t* t = target + i / height * to.stride(0) + i % height * to.stride(2);
      for (int64_t c = 0; c < num_channels; ++c, s += from.stride(1), t += to.stride(1))
        for (int64_t x = 0; x < width; ++x) t[x * to_x] = s[x * from_x];
    }
  });
}

}  // namespace lockstep::infer
