#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "infer/sparse/layer.h"

// A weight of a convolution is a tap: an input plane and a displacement. In a layout of planes it
// is one offset, so every kind of layer runs the same kernel. With a stride, the rows and columns
// that a tap meets are a phase of the input, which is copied to planes of its own.
namespace lockstep::infer {
namespace {

/// Bytes of inputs that a block reads for one tile, and those of one row of a plane.
constexpr int64_t kBlockBytes = 32 << 10;
constexpr int64_t kBytesOfRow = (kPixelsOfTile + Planes::kAlign) * 4;
/// Least mean number of kept weights of a block: below, the sums' ways to memory and back cost
/// more.
constexpr int64_t kLeastOfBlock = 30;
/// Layouts that are kept: those of the usual batch and of a last, smaller one.
constexpr size_t kMostLayouts = 4;

int64_t floor_divided(int64_t value, int64_t by) {
  return value >= 0 ? value / by : -((by - 1 - value) / by);
}

/// Returns samples [B, I] as one image [1, I, 1, B], a view.
at::Tensor as_image(const at::Tensor& samples) { return samples.t().unsqueeze(0).unsqueeze(2); }

}  // namespace

KeptLayer::KeptLayer(const Layer& layer, SimdPath path)
    : layer_(layer),
      path_(path),
      num_planes_(has_quads() ? num_quads(layer.weight.size(1) * layer.groups)
                              : layer.weight.size(1) * layer.groups),
      takes_even_(!has_quads() && !layer.is_linear && layer.groups == layer.weight.size(0) &&
                  layer.weight.size(1) == 1 && layer.stride[1] == 2) {
  // Rows of equal length follow each other, so that the ends of loops are predicted. Those of a
  // quad of outputs stay together.
  const int64_t num_outputs = layer.weight.size(0), num_together = has_quads() ? kBytesOfQuad : 1;
  std::vector<std::vector<Kept>> kept_O;
  for (int64_t o = 0; o < num_outputs; ++o) kept_O.push_back(kept_of(o));
  if (phases_.empty()) (void)phase_of({0, 0});  // no weight is kept
  kept_O.resize(
      static_cast<size_t>((num_outputs + num_together - 1) / num_together * num_together));
  std::vector<std::pair<size_t, int32_t>> groups;  // number of weights, first channel
  for (size_t o = 0; o < kept_O.size(); o += static_cast<size_t>(num_together)) {
    groups.emplace_back(0, static_cast<int32_t>(o));
    for (int64_t i = 0; i < num_together; ++i)
      groups.back().first += kept_O[o + static_cast<size_t>(i)].size();
  }
  std::ranges::stable_sort(groups, {}, &std::pair<size_t, int32_t>::first);
  std::vector<std::vector<Kept>> rows;
  for (const auto& [num, first] : groups)
    for (int32_t o = first; o < first + num_together; ++o) {
      channels_O_.push_back(o);
      rows.push_back(std::move(kept_O[static_cast<size_t>(o)]));
    }
  divide(rows);
  sums_O_.push_back(0);
  for (const std::vector<Kept>& row : rows)
    sums_O_.push_back(sums_O_.back() + static_cast<int64_t>(row.size()));
  if (has_quads()) set_factors();
}

/// Computes what turns sums into outputs. The zero of the inputs is part of every sum.
void KeptLayer::set_factors() {
  const Integers& integers = *layer_.integers;
  const at::Tensor sums_O = integers.weight.flatten(1).sum(1, false, at::kFloat);
  const at::Tensor bias_O =
      layer_.bias - sums_O * integers.factors_O * static_cast<double>(integers.inputs.zero);
  const auto copy = [](const at::Tensor& values) {
    const at::Tensor whole = values.contiguous();
    const auto* const items = whole.const_data_ptr<float>();
    return std::vector<float>(items, items + whole.numel());
  };
  factors_O_ = copy(integers.factors_O);
  bias_O_ = copy(bias_O);
}

int32_t KeptLayer::phase_of(std::array<int64_t, 2> first) {
  const auto found = std::ranges::find(phases_, first);
  if (found == phases_.end()) phases_.push_back(first);
  return static_cast<int32_t>(std::ranges::find(phases_, first) - phases_.begin());
}

/// Returns the kept weights of an output channel, ordered by input plane. Those of one quad of
/// inputs are one.
std::vector<KeptLayer::Kept> KeptLayer::kept_of(int64_t output) {
  std::vector<Kept> kept;
  const at::Tensor weight = layer_.weight[output];  // contiguous
  const auto* const values = weight.const_data_ptr<float>();
  const int8_t* const integers =
      has_quads() ? layer_.integers->weight[output].const_data_ptr<int8_t>() : nullptr;
  const int64_t num_inputs = weight.size(0), kernel_h = weight.size(1), kernel_w = weight.size(2);
  const int64_t outputs_of_group = layer_.weight.size(0) / layer_.groups;
  const int64_t first_input = output / outputs_of_group * num_inputs;
  for (int64_t i = 0; i < weight.numel(); ++i) {
    if (has_quads() ? integers[i] == 0 : values[i] == 0) continue;  // a NaN is kept
    const std::array<int64_t, 2> at{i / kernel_w % kernel_h, i % kernel_w};
    std::array<int64_t, 2> first{}, shift{};
    for (size_t axis = 0; axis < 2; ++axis) {
      const int64_t place = at[axis] * layer_.dilation[axis] - layer_.pads[axis];
      shift[axis] = takes_even_ ? place : floor_divided(place, layer_.stride[axis]);
      first[axis] = takes_even_ ? 0 : place - shift[axis] * layer_.stride[axis];
      before_[axis] = std::max(before_[axis], -shift[axis]);
      after_[axis] = std::max(after_[axis], shift[axis]);
    }
    const int64_t channel = first_input + i / (kernel_h * kernel_w);
    const int64_t plane = has_quads() ? channel / kBytesOfQuad : channel;
    const int32_t bits = has_quads()
                             ? std::bit_cast<int32_t>(uint32_t{std::bit_cast<uint8_t>(integers[i])}
                                                      << (8 * (channel % kBytesOfQuad)))
                             : std::bit_cast<int32_t>(values[i]);
    kept.push_back({.bits = bits,
                    .tap = {static_cast<int32_t>(phase_of(first) * num_planes_ + plane),
                            static_cast<int32_t>(shift[0]), static_cast<int32_t>(shift[1])}});
  }
  std::ranges::stable_sort(
      kept, {}, [](const Kept& one) { return std::tuple(one.tap.plane, one.tap.dy, one.tap.dx); });
  if (!has_quads()) return kept;
  std::vector<Kept> quads;
  for (const Kept& one : kept)
    if (!quads.empty() && quads.back().tap == one.tap)
      quads.back().bits |= one.bits;
    else
      quads.push_back(one);
  return quads;
}

/// Stores the kept weights, block by block.
void KeptLayer::divide(const std::vector<std::vector<Kept>>& kept_O) {
  const std::vector<int32_t> ends = ends_of_blocks(kept_O);
  num_blocks_ = static_cast<int64_t>(ends.size());
  std::vector<size_t> next_O(kept_O.size());
  for (const int32_t end : ends)
    for (size_t o = 0; o < kept_O.size(); ++o) {
      begins_BO_.push_back(static_cast<int64_t>(bits_K_.size()));
      for (size_t& next = next_O[o]; next < kept_O[o].size(); ++next) {
        const Kept& kept = kept_O[o][next];
        if (kept.tap.plane >= end) break;
        bits_K_.push_back(kept.bits);
        taps_K_.push_back(kept.tap);
        columns_K_.push_back(kept.tap.plane);
      }
    }
  begins_BO_.push_back(static_cast<int64_t>(bits_K_.size()));
}

/// Returns the plane after each block. The inputs of a block fit the first cache, unless its rows
/// would be too short.
std::vector<int32_t> KeptLayer::ends_of_blocks(const std::vector<std::vector<Kept>>& kept_O) const {
  // Samples of a linear layer are few pixels, and its sums are computed for single samples too.
  // Quads are few, and so are the taps of a channel that is read in place.
  if (layer_.is_linear || has_quads() || takes_even_) return {std::numeric_limits<int32_t>::max()};
  // Image rows of a plane that some tap meets, as bits: each takes a tile and the pixels around it.
  std::vector<uint64_t> rows(static_cast<size_t>(num_planes_) *
                             std::max<size_t>(1, phases_.size()));
  int64_t num_kept = 0, num_bytes = 0;
  for (const std::vector<Kept>& row : kept_O) {
    num_kept += static_cast<int64_t>(row.size());
    for (const Kept& kept : row)
      rows[static_cast<size_t>(kept.tap.plane)] |= uint64_t{1} << ((kept.tap.dy + before_[0]) % 64);
  }
  const auto bytes_of = [](uint64_t bits) { return std::popcount(bits) * kBytesOfRow; };
  for (const uint64_t bits : rows) num_bytes += bytes_of(bits);
  const int64_t most = num_kept / (kLeastOfBlock * static_cast<int64_t>(kept_O.size()));
  const int64_t num_blocks =
      std::clamp(num_bytes / kBlockBytes, int64_t{1}, std::max(int64_t{1}, most));
  std::vector<int32_t> ends;
  int64_t sum = 0;
  for (size_t plane = 0; plane < rows.size(); ++plane) {
    sum += bytes_of(rows[plane]);
    if (sum * num_blocks < num_bytes * static_cast<int64_t>(ends.size() + 1)) continue;
    ends.push_back(static_cast<int32_t>(plane + 1));
  }
  if (num_bytes == 0) ends = {0};
  ends.back() = std::numeric_limits<int32_t>::max();
  return ends;
}

KeptLayer::Sizes KeptLayer::sizes_of(const at::Tensor& inputs) const {
  Sizes sizes{.outputs = layer_.output_size(inputs.size(2), inputs.size(3))};
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t extent = inputs.size(static_cast<int64_t>(axis) + 2);
    const int64_t phases = has_phases() ? layer_.stride[axis] : 1;
    sizes.inputs[axis] = (extent + phases - 1) / phases;
    const int64_t last = (sizes.outputs[axis] - 1) * layer_.stride[axis] / phases;
    const int64_t reach = last + 1 + after_[axis] - sizes.inputs[axis];
    sizes.padding[axis] = std::max({before_[axis], reach, int64_t{0}});
  }
  return sizes;
}

bool KeptLayer::suits(const Activations& inputs, const Sizes& sizes) const {
  return inputs.planes && !layer_.takes_max && !has_phases() &&
         inputs.planes->zero_rows() >= sizes.padding[0] &&
         inputs.planes->zero_columns() >= sizes.padding[1] &&
         // Outputs of a layer that shrinks images have more zeros than lead.
         inputs.planes->lead >= sizes.padding[0] * inputs.planes->row + sizes.padding[1];
}

/// Returns the bits of an item of padding.
int32_t KeptLayer::padding_bits() const {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  return layer_.takes_max ? std::bit_cast<int32_t>(kLeast)
         : has_quads()    ? zero_quad(layer_.integers->inputs)
                          : 0;
}

/// Copies inputs into planes, phase by phase.
Activations KeptLayer::laid_out(const Activations& images, const Sizes& sizes,
                                Workspace* workspace) const {
  const at::Tensor& inputs = images.tensor;
  std::array<int64_t, 2> padding = sizes.padding;
  const auto& paddings = workspace->paddings;
  if (const auto found = paddings.find(sizes.inputs); found != paddings.end())
    padding = {std::max(padding[0], found->second[0]), std::max(padding[1], found->second[1])};
  const Planes planes = Planes::make(inputs.size(0), sizes.inputs, padding);
  const int64_t num_channels = inputs.size(1), num_phases = static_cast<int64_t>(phases_.size());
  const at::Tensor laid = planes.allocate(num_channels * num_phases, padding_bits(),
                                          inputs.scalar_type(), &workspace->arena);
  for (int64_t i = 0; i < num_phases; ++i) {
    const auto& first = phases_[static_cast<size_t>(i)];
    at::Tensor phase = inputs;
    for (size_t axis = 0; has_phases() && axis < 2; ++axis)
      phase = phase.slice(static_cast<int64_t>(axis) + 2, first[axis], std::nullopt,
                          layer_.stride[axis]);
    at::Tensor to = laid.narrow(1, i * num_channels, num_channels);
    for (int64_t axis = 2; axis < 4; ++axis) {  // the last phases may be smaller
      const int64_t extent = phase.size(axis), missing = to.size(axis) - extent;
      if (missing > 0) to.narrow(axis, extent, missing).view(at::kInt).fill_(padding_bits());
      to = to.narrow(axis, 0, extent);
    }
    copy_pixels(phase, to);
  }
  return {laid, planes, images.rounding, images.num_channels};
}

const KeptLayer::Laid& KeptLayer::laid(const Planes& planes, const Sizes& sizes,
                                       const Workspace& workspace) {
  Planes outputs = planes;
  outputs.height = sizes.outputs[0];
  outputs.width = sizes.outputs[1];
  if (takes_even_) {
    const auto found = workspace.paddings.find(sizes.outputs);
    outputs =
        Planes::make(planes.num_images, sizes.outputs,
                     found == workspace.paddings.end() ? std::array<int64_t, 2>{} : found->second);
  }
  for (const auto& known : laid_)
    if (known->inputs == planes && known->outputs == outputs) return *known;
  if (num_planes_ * static_cast<int64_t>(phases_.size()) * planes.stride >
      std::numeric_limits<int32_t>::max())
    throw Error(ExitCode::kUsage, "infer",
                fmt::format("layer {}: batches of {} samples are too large for engine sparse; set "
                            "inferer.batch_size or tensorrt_config.max_batch_size",
                            layer_.name, planes.num_images));
  if (laid_.size() == kMostLayouts) laid_.erase(laid_.begin());
  auto made = std::make_unique<Laid>(Laid{.inputs = planes, .outputs = outputs});
  made->offsets_K.reserve(taps_K_.size());
  for (const Tap& tap : taps_K_)
    made->offsets_K.push_back(
        static_cast<int32_t>(tap.plane * planes.stride + tap.dy * planes.row + tap.dx));
  made->mask.assign(static_cast<size_t>(outputs.stride + kPixelsOfLargeTile), 0);
  for (int64_t n = 0; n < outputs.num_images; ++n)
    for (int64_t y = 0; y < outputs.height; ++y) {
      const auto begin = made->mask.begin() + n * outputs.image + y * outputs.row;
      std::fill(begin, begin + outputs.width, ~uint32_t{0});
    }
  laid_.push_back(std::move(made));
  return *laid_.back();
}

Activations KeptLayer::prepared(const Activations& inputs, Workspace* workspace) const {
  if (layer_.is_linear || layer_.takes_max) return inputs;
  const Sizes sizes = sizes_of(inputs.tensor);
  auto& shared = workspace->paddings[sizes.inputs];
  shared = {std::max(shared[0], sizes.padding[0]), std::max(shared[1], sizes.padding[1])};
  if (has_phases() || suits(inputs, sizes)) return inputs;
  return laid_out(inputs, sizes, workspace);
}

/// Returns a layer's inputs in planes that suit it, and where its taps are in them.
std::pair<Activations, const KeptLayer::Laid&> KeptLayer::placed(const Activations& inputs,
                                                                 Workspace* workspace) {
  Activations images = inputs;
  if (layer_.is_linear)
    images.tensor = as_image(inputs.tensor);
  else
    images = prepared(inputs, workspace);
  const Sizes sizes = sizes_of(images.tensor);
  if (!suits(images, sizes)) images = laid_out(images, sizes, workspace);
  constexpr std::array<int64_t, 2> kNone{};
  if (before_ != kNone || after_ != kNone || sizes.padding != kNone)
    images.planes->pad(images.tensor, padding_bits());
  return {images, laid(*images.planes, sizes, *workspace)};
}

/// Returns a layer's residual in the layout of its outputs; undefined if there is none.
at::Tensor KeptLayer::placed_residual(const Activations& residual, const Planes& planes,
                                      Workspace* workspace) const {
  if (!residual.tensor.defined() || residual.planes == planes) return residual.tensor;
  const int64_t num_outputs = layer_.weight.size(0);
  at::Tensor sums = planes.allocate(residual.rounding ? num_quads(num_outputs) : num_outputs, 0,
                                    residual.tensor.scalar_type(), &workspace->arena);
  copy_pixels(layer_.is_linear ? as_image(residual.tensor) : residual.tensor, sums);
  return sums;
}

}  // namespace lockstep::infer
