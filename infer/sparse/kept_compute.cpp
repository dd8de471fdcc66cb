#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "infer/sparse/layer.h"

// Computation of KeptLayer: its work is divided into tiles of pixels and over the threads.
namespace lockstep::infer {
namespace {

/// Samples up to which a linear layer is computed one by one: vectors of pixels would be empty.
constexpr int64_t kFewSamples = 3;
/// Channels of inputs up to which those of a larger tile fit the first cache.
constexpr int64_t kChannelsOfLargeTile = 64;
/// Smallest number of multiplications for a thread of its own.
constexpr int64_t kGrain = 1 << 17;

/// Returns one image [1, I, 1, B] as samples [B, I], a view.
at::Tensor as_samples(const at::Tensor& image) { return image.squeeze(2).squeeze(0).t(); }
/// Places of a tensor's items, null if it is undefined.
template <typename Item>
Item* items_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<Item*>(tensor.data_ptr()) : nullptr;
}

}  // namespace

int64_t KeptLayer::pixels_of_tile() const {
  return num_planes_ <= kChannelsOfLargeTile ? kPixelsOfLargeTile : kPixelsOfTile;
}

/// True if the threads divide the rows of weights, since there are too few pixels for them.
bool KeptLayer::divides_rows(int64_t num_pixels) {
  const int64_t num_threads = at::get_num_threads();
  return num_threads > 1 && num_pixels < kPixelsOfTile * num_threads;
}

/// Divides pixels or rows over the threads. Calls pixels(begin_O, end_O, begin_P, end_P) for tiles.
/// A pixel takes num_products of weights.
template <typename Pixels>
void KeptLayer::compute(int64_t num_pixels, size_t num_products, const Pixels& pixels) const {
  if (num_pixels <= 0) return;  // no images
  constexpr int64_t kVector = Planes::kAlign;
  const int64_t num_together = has_quads() ? kBytesOfQuad : 1;
  const int64_t num_rows = static_cast<int64_t>(channels_O_.size());
  const int64_t tile = pixels_of_tile(), num_vectors = (num_pixels + kVector - 1) / kVector;
  const auto run_tiles = [&](int64_t begin_O, int64_t end_O, int64_t begin, int64_t end) {
    for (int64_t p = begin * kVector; p < end * kVector; p += tile)
      pixels(begin_O, end_O, p, std::min(end * kVector, p + tile));
  };
  const auto work_of = [&](int64_t num) {  // multiplications
    return num * static_cast<int64_t>(num_products) + 1;
  };
  if (!divides_rows(num_pixels)) {
    at::parallel_for(0, num_vectors, std::max<int64_t>(1, kGrain / work_of(kVector)),
                     [&](int64_t begin, int64_t end) { run_tiles(0, num_rows, begin, end); });
    return;
  }
  // Each thread gets as many weights.
  const int64_t num_parts =
      std::clamp<int64_t>(work_of(num_pixels) / kGrain, 1, at::get_num_threads());
  const auto begin_of = [&](int64_t part) {
    const int64_t kept = sums_O_.back() * part / num_parts;
    const auto row = std::ranges::lower_bound(sums_O_, kept) - sums_O_.begin();
    return part == num_parts ? num_rows : row / num_together * num_together;
  };
  at::parallel_for(0, num_parts, 1, [&](int64_t begin, int64_t end) {
    run_tiles(begin_of(begin), begin_of(end), 0, num_vectors);
  });
}

KeptWork KeptLayer::kept_work() const {
  return {.begins_BO = begins_BO_.data(),
          .num_rows = layer_.weight.size(0),
          .num_blocks = num_blocks_,
          .channels_O = channels_O_.data(),
          .bits_K = bits_K_.data(),
          .bias_O = layer_.bias.const_data_ptr<float>(),
          .takes_max = layer_.takes_max,
          .low = layer_.low,
          .high = layer_.high};
}

QuadWork KeptLayer::quad_work() const {
  return {.begins_O = begins_BO_.data(),
          .channels_O = channels_O_.data(),
          .num_channels = layer_.weight.size(0),
          .weights_K = bits_K_.data(),
          .factors_O = factors_O_.data(),
          .bias_O = bias_O_.data(),
          .inner_rounding = layer_.inner_rounding ? &*layer_.inner_rounding : nullptr,
          .low = layer_.low,
          .high = layer_.high,
          .output_rounding = layer_.output_rounding.value_or(Rounding{})};
}

/// Returns the outputs that the layer has. `allocate` gets the number of channels or quads, and the
/// type.
template <typename Allocate>
LayerOutputs KeptLayer::allocated(const Allocate& allocate) const {
  LayerOutputs outputs;
  const int64_t num_outputs = layer_.weight.size(0);
  if (!layer_.output_rounding || layer_.keeps_values)
    outputs.values = allocate(num_outputs, at::kFloat);
  if (!layer_.output_rounding) return outputs;
  outputs.bytes = allocate(num_quads(num_outputs), at::kInt);
  outputs.bytes.rounding = layer_.output_rounding;
  outputs.bytes.num_channels = num_outputs;
  return outputs;
}

/// Computes a linear layer for few samples, one after the other.
LayerOutputs KeptLayer::run_samples(const Activations& inputs, const Activations& residual) const {
  const at::Tensor samples = inputs.tensor.contiguous();
  const at::Tensor sums = residual.tensor.defined() ? residual.tensor.contiguous() : at::Tensor();
  const int64_t num_samples = samples.size(0), num_outputs = layer_.weight.size(0);
  LayerOutputs outputs = allocated([&](int64_t num_channels, at::ScalarType dtype) {
    return Activations{at::empty({num_samples, num_channels}, dtype)};
  });
  KeptWork work = kept_work();
  QuadWork quads = quad_work();
  work.offsets_K = quads.offsets_K = columns_K_.data();
  const bool has_bytes = residual.rounding.has_value();
  if (has_bytes) quads.residual_rounding = *residual.rounding;
  const auto num_kept = static_cast<int64_t>(bits_K_.size());
  const int64_t grain = std::max<int64_t>(1, kGrain * num_outputs / (num_kept + 1));
  const auto row = [](auto* items, const at::Tensor& tensor, int64_t b) {
    return items == nullptr ? items : items + b * tensor.size(1);
  };
  for (int64_t b = 0; b < num_samples; ++b) {
    const auto* const values = row(items_of<float>(has_bytes ? at::Tensor() : sums), sums, b);
    auto* const to = row(items_of<float>(outputs.values.tensor), outputs.values.tensor, b);
    if (!has_quads()) {
      work.inputs = row(items_of<const float>(samples), samples, b);
      work.residual = values;
      work.outputs = to;
      at::parallel_for(0, num_outputs, grain, [&](int64_t begin, int64_t end) {
        kept_kernels(path_).sample(work, begin, end);
      });
      continue;
    }
    quads.inputs = row(items_of<const uint32_t>(samples), samples, b);
    quads.residual = values;
    quads.residual_bytes = row(items_of<const uint32_t>(has_bytes ? sums : at::Tensor()), sums, b);
    quads.outputs = to;
    quads.bytes = row(items_of<uint32_t>(outputs.bytes.tensor), outputs.bytes.tensor, b);
    at::parallel_for(0, num_quads(num_outputs), grain, [&](int64_t begin, int64_t end) {
      quad_kernels(path_).sample(quads, begin * kBytesOfQuad, end * kBytesOfQuad);
    });
  }
  return outputs;
}

/// Computes a range of pixels, and writes zeros between them unless takes_even_.
void KeptLayer::compute_range(const KeptWork& work, const Laid& where, int64_t begin_O,
                              int64_t end_O, int64_t begin_P, int64_t end_P) const {
  const KeptKernels& kernels = kept_kernels(path_);
  if (!takes_even_) return kernels.pixels(work, begin_O, end_O, begin_P, end_P);
  const Planes &in = where.inputs, &out = where.outputs;
  // Channel by channel, as the rows of a channel are next to each other.
  for (int64_t o = begin_O; o < end_O; ++o)
    for (int64_t row = begin_P / out.row; row * out.row < end_P; ++row) {
      const int64_t n = row / (out.image / out.row), y = row % (out.image / out.row);
      if (n >= out.num_images || y >= out.height) continue;
      const int64_t x = std::max<int64_t>(0, begin_P - row * out.row);
      const int64_t end = std::min(out.width, end_P - row * out.row);
      if (x >= end) continue;
      kernels.even_pixels(work, o,
                          work.inputs + n * in.image + y * layer_.stride[0] * in.row + 2 * x,
                          row * out.row + x, end - x);
    }
}

/// Returns memory for outputs in these planes: that of the residual if it is a copy or may change.
at::Tensor KeptLayer::outputs_in(const Planes& planes, const Activations& residual,
                                 const at::Tensor& placed_residual, const Activations& inputs,
                                 Workspace* workspace) const {
  const bool is_copy = !placed_residual.is_same(residual.tensor);
  const bool may_change = residual.may_change && !layer_.is_linear;  // a linear one has other sizes
  if (placed_residual.defined() && (is_copy || may_change) &&
      placed_residual.const_data_ptr() != inputs.tensor.const_data_ptr())
    return placed_residual;
  // Pixels that are read with a stride are written without the zeros between them.
  const std::optional<int32_t> between = takes_even_ ? std::optional(0) : std::nullopt;
  return planes.allocate(layer_.weight.size(0), between, at::kFloat, &workspace->arena);
}

bool KeptLayer::goes_with(const KeptLayer& next) const {
  const auto is_float = [](const Layer& layer) { return !layer.is_linear && !layer.integers; };
  const Layer& last = next.layer_;
  return is_float(layer_) && is_float(last) && !layer_.adds_residual && !last.takes_max &&
         last.groups == 1 && last.weight.numel() == last.weight.size(0) * last.weight.size(1) &&
         last.stride == std::array<int64_t, 2>{1, 1} && last.pads == std::array<int64_t, 4>{};
}

LayerOutputs KeptLayer::run_with(KeptLayer* next, const Activations& inputs,
                                 const Activations& residual, Workspace* workspace) {
  const auto at = placed(inputs, workspace);
  const Activations& images = at.first;
  const Laid& where = at.second;
  const Planes& planes = where.outputs;
  const int64_t tile = next->pixels_of_tile();
  if (divides_rows(planes.extent()))
    return next->run(run(inputs, {}, workspace).values, residual, workspace);
  const at::Tensor sums = next->placed_residual(residual, planes, workspace);
  const at::Tensor outputs = next->outputs_in(planes, residual, sums, images, workspace);
  KeptWork first = kept_work(), second = next->kept_work();
  first.offsets_K = where.offsets_K.data();
  first.inputs = items_of<const float>(images.tensor);
  first.output_stride = tile;
  first.mask = second.mask = where.mask.data();
  if (next->offsets_of_tile_K_.empty()) {
    std::vector<int32_t> offsets_K;
    for (const int32_t plane : next->columns_K_)
      offsets_K.push_back(static_cast<int32_t>(plane * tile));
    next->offsets_of_tile_K_ = std::move(offsets_K);
  }
  second.offsets_K = next->offsets_of_tile_K_.data();
  second.residual = items_of<const float>(sums);
  second.outputs = items_of<float>(outputs);
  second.output_stride = planes.stride;
  const int64_t num_between = layer_.weight.size(0);
  next->compute(planes.extent(), bits_K_.size() + next->bits_K_.size(),
                [&](int64_t begin_O, int64_t end_O, int64_t begin_P, int64_t end_P) {
                  const auto block =
                      workspace->arena.take(num_between * tile * int64_t{sizeof(float)});
                  KeptWork from = first, to = second;
                  from.outputs = static_cast<float*>(block.get()) - begin_P;
                  to.inputs = from.outputs;
                  compute_range(from, where, 0, num_between, begin_P, end_P);
                  next->compute_range(to, where, begin_O, end_O, begin_P, end_P);
                });
  return {.values = {outputs, planes}, .bytes = {}};
}

LayerOutputs KeptLayer::run(const Activations& inputs, const Activations& residual,
                            Workspace* workspace) {
  if (layer_.is_linear && inputs.tensor.size(0) <= kFewSamples)
    return run_samples(inputs, residual);
  const auto at = placed(inputs, workspace);
  const Activations& images = at.first;
  const Laid& where = at.second;
  const at::Tensor sums = placed_residual(residual, where.outputs, workspace);
  LayerOutputs outputs;
  const int64_t num_pixels = where.outputs.extent();
  if (has_quads()) {
    outputs = allocated([&](int64_t num, at::ScalarType dtype) {
      return Activations{where.outputs.allocate(num, {}, dtype, &workspace->arena), where.outputs};
    });
    QuadWork work = quad_work();
    work.offsets_K = where.offsets_K.data();
    work.inputs = items_of<const uint32_t>(images.tensor);
    if (residual.rounding) {
      work.residual_bytes = items_of<const uint32_t>(sums);
      work.residual_rounding = *residual.rounding;
    } else {
      work.residual = items_of<const float>(sums);
    }
    work.outputs = items_of<float>(outputs.values.tensor);
    work.bytes = items_of<uint32_t>(outputs.bytes.tensor);
    work.output_stride = where.outputs.stride;
    work.mask = where.mask.data();
    compute(num_pixels, bits_K_.size(),
            [&](int64_t begin_O, int64_t end_O, int64_t begin_P, int64_t end_P) {
              quad_kernels(path_).pixels(work, begin_O, end_O, begin_P, end_P);
            });
  } else {
    outputs.values = {outputs_in(where.outputs, residual, sums, images, workspace), where.outputs};
    KeptWork work = kept_work();
    work.offsets_K = where.offsets_K.data();
    work.inputs = items_of<const float>(images.tensor);
    work.residual = items_of<const float>(sums);
    work.outputs = items_of<float>(outputs.values.tensor);
    work.output_stride = where.outputs.stride;
    work.mask = where.mask.data();
    compute(num_pixels, bits_K_.size(),
            [&](int64_t begin_O, int64_t end_O, int64_t begin_P, int64_t end_P) {
              compute_range(work, where, begin_O, end_O, begin_P, end_P);
            });
  }
  for (Activations* made : {&outputs.values, &outputs.bytes})
    if (layer_.is_linear && made->tensor.defined()) made->tensor = as_samples(made->tensor);
  return outputs;
}

}  // namespace lockstep::infer
