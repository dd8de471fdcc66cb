#include "infer/sparse/quads.h"

#include <algorithm>
#include <bit>

#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

namespace lockstep::infer {
namespace {

/// Smallest number of pixels for a thread of its own.
constexpr int64_t kPixelsOfTask = 1 << 14;

const QuadKernels& kernels() { return quad_kernels(fastest_simd_path()); }

/// Returns bytes of an int8 tensor in quads, or of quads in an int8 tensor: 128 higher or lower.
at::Tensor shifted(const at::Tensor& bytes, const Rounding& rounding) {
  return rounding.is_signed ? bytes.bitwise_xor(0x80) : bytes;
}

/// Returns a copy whose last axis has the stride 1 even if its extent is 1, as view() requires.
at::Tensor compact(const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }

/// Calls row(n, quad, y) for all rows of images.
template <typename Row>
void for_each_row(const at::Tensor& quads, const Row& row) {
  const int64_t num = quads.size(1), height = quads.size(2);
  const int64_t grain = std::max<int64_t>(1, kPixelsOfTask / std::max<int64_t>(1, quads.size(3)));
  at::parallel_for(0, quads.size(0) * num * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) row(i / height / num, i / height % num, i % height);
  });
}

template <typename Item>
Item* at_row(Item* items, const at::Tensor& tensor, int64_t n, int64_t channel, int64_t y) {
  return items + n * tensor.stride(0) + channel * tensor.stride(1) + y * tensor.stride(2);
}

Activations rounded_rows(const at::Tensor& values, const Rounding& rounding) {
  const at::Tensor whole = values.contiguous();
  const int64_t extent = whole.size(-1);
  std::vector<int64_t> sizes = whole.sizes().vec();
  sizes.back() = num_quads(extent);
  const at::Tensor quads = at::empty(sizes, at::kInt);
  const auto* const from = whole.const_data_ptr<float>();
  auto* const to = static_cast<uint8_t*>(quads.mutable_data_ptr());
  const int64_t num_rows = extent == 0 ? 0 : whole.numel() / extent;
  const int64_t grain = std::max<int64_t>(1, kPixelsOfTask / std::max<int64_t>(1, extent));
  at::parallel_for(0, num_rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      kernels().round_bytes(from + i * extent, extent, rounding,
                            to + i * sizes.back() * kBytesOfQuad);
  });
  return {.tensor = quads, .rounding = rounding, .num_channels = extent};
}

}  // namespace

int32_t zero_quad(const Rounding& rounding) {
  return std::bit_cast<int32_t>(0x01010101U * static_cast<uint32_t>(rounding.zero));
}

at::Tensor Activations::contiguous() const {
  at::Tensor whole = tensor;
  if (!planes || tensor.dim() != 4) {
    whole = rounding ? compact(tensor) : tensor.contiguous();
  } else {
    whole = at::empty(tensor.sizes(), tensor.options());
    copy_pixels(tensor, whole);
  }
  if (!rounding) return whole;
  const int64_t axis = whole.dim() == 4 && planes ? 1 : whole.dim() - 1;
  // [..., C / 4, (H, W,) 4] -> [..., C / 4, 4, (H, W)]
  std::vector<int64_t> sizes = whole.sizes().vec();
  at::Tensor bytes = whole.view(at::kByte).view([&] {
    std::vector<int64_t> split = sizes;
    split.push_back(kBytesOfQuad);
    return split;
  }());
  sizes[static_cast<size_t>(axis)] *= kBytesOfQuad;
  bytes = bytes.movedim(-1, axis + 1).reshape(sizes).narrow(axis, 0, num_channels);
  bytes = shifted(bytes.contiguous(), *rounding);
  return rounding->is_signed ? bytes.view(at::kChar) : bytes;
}

Activations packed(const at::Tensor& bytes, const Rounding& rounding, bool is_linear,
                   Workspace* workspace) {
  const int64_t axis = bytes.dim() == 4 && !is_linear ? 1 : bytes.dim() - 1;
  const int64_t num_channels = bytes.size(axis);
  at::Tensor last = shifted(bytes.view(at::kByte), rounding).movedim(axis, -1);
  last = at::constant_pad_nd(last, {0, num_quads(num_channels) * kBytesOfQuad - num_channels});
  const at::Tensor quads = compact(compact(last).view(at::kInt).movedim(-1, axis));
  if (bytes.dim() != 4 || is_linear)
    return {.tensor = quads, .rounding = rounding, .num_channels = num_channels};
  const Planes planes = Planes::make(quads.size(0), quads.sizes().slice(2), {0, 0});
  const at::Tensor images =
      planes.allocate(quads.size(1), zero_quad(rounding), at::kInt, &workspace->arena);
  copy_pixels(quads, images);
  return {images, planes, rounding, num_channels};
}

Activations rounded(const Activations& values, const Rounding& rounding, Workspace* workspace) {
  if (values.tensor.dim() != 4) return rounded_rows(values.contiguous(), rounding);
  at::Tensor from = values.tensor;
  if (from.stride(3) != 1) {
    from = at::empty(from.sizes(), from.options());
    copy_pixels(values.tensor, from);
  }
  const std::array<int64_t, 2> size{from.size(2), from.size(3)};
  const auto known = workspace->paddings.find(size);
  const Planes planes =
      Planes::make(from.size(0), size,
                   known == workspace->paddings.end() ? std::array<int64_t, 2>{} : known->second);
  const int64_t num_channels = from.size(1);
  const at::Tensor quads =
      planes.allocate(num_quads(num_channels), zero_quad(rounding), at::kInt, &workspace->arena);
  const auto* const source = from.const_data_ptr<float>();
  auto* const target = reinterpret_cast<uint32_t*>(quads.mutable_data_ptr<int32_t>());
  for_each_row(quads, [&](int64_t n, int64_t quad, int64_t y) {
    std::array<const float*, kBytesOfQuad> rows{};
    for (int64_t i = 0; i < kBytesOfQuad; ++i)
      rows[static_cast<size_t>(i)] =
          at_row(source, from, n, std::min(quad * kBytesOfQuad + i, num_channels - 1), y);
    kernels().round(rows, size[1], rounding, at_row(target, quads, n, quad, y));
  });
  return {quads, planes, rounding, num_channels};
}

Activations restored(const Activations& quads, Workspace* workspace) {
  if (!quads.planes || quads.tensor.dim() != 4) {
    const Rounding& by = *quads.rounding;
    const at::Tensor bytes = shifted(quads.contiguous().view(at::kByte), by);
    return {bytes.to(at::kFloat).sub_(by.zero).mul_(by.scale)};
  }
  const at::Tensor values =
      quads.planes->allocate(quads.num_channels, 0, at::kFloat, &workspace->arena);
  const auto* const source =
      reinterpret_cast<const uint32_t*>(quads.tensor.const_data_ptr<int32_t>());
  auto* const target = values.mutable_data_ptr<float>();
  for_each_row(quads.tensor, [&](int64_t n, int64_t quad, int64_t y) {
    const int64_t first = quad * kBytesOfQuad,
                  num = std::min(kBytesOfQuad, quads.num_channels - first);
    std::array<float*, kBytesOfQuad> rows{};
    for (int64_t i = 0; i < num; ++i)
      rows[static_cast<size_t>(i)] = at_row(target, values, n, first + i, y);
    kernels().restore(at_row(source, quads.tensor, n, quad, y), values.size(3), *quads.rounding,
                      num, rows);
  });
  return {values, quads.planes};
}

}  // namespace lockstep::infer
