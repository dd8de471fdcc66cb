// Separable resize, row by row: normalise the needed input rows once, blend them to one row, then
// blend its columns. Only num_taps converted rows are kept.
#include "data/images/resize.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::data {
namespace {

/// Returns the range of input columns that the taps read.
TapRange columns_read(const Taps& taps, int64_t in_size) {
  const auto [least, most] = std::minmax_element(taps.firsts.begin(), taps.firsts.end());
  return {*least, std::min(in_size, *most + taps.num_taps)};
}

/// Weights of one output, from the first input with a weight to the last.
struct OutputTaps {
  int64_t first = 0;
  std::vector<float> weights;
};

/// Returns the weights of one output around its center, normalised to a sum of 1.
OutputTaps taps_around(double center, double support, int64_t in_size) {
  const auto weight_of = [&](int64_t in) {
    return 1.0 - std::abs(static_cast<double>(in) + 0.5 - center) / support;
  };
  // Conversion to an integer truncates; a too wide range is trimmed below.
  auto first = std::clamp(static_cast<int64_t>(center - support), int64_t{0}, in_size - 1);
  auto last = std::clamp(static_cast<int64_t>(center + support) + 1, first + 1, in_size);
  while (first + 1 < last && weight_of(first) <= 0) ++first;
  while (first + 1 < last && weight_of(last - 1) <= 0) --last;
  double sum = 0;
  for (int64_t in = first; in < last; ++in) sum += weight_of(in);
  OutputTaps taps{first, {}};
  for (int64_t in = first; in < last; ++in)
    taps.weights.push_back(last - first == 1 ? 1.0F : static_cast<float>(weight_of(in) / sum));
  return taps;
}

/// Returns a weight; 0 after the last output and the last tap.
float weight_at(const Taps& taps, int64_t out_size, int64_t out, int64_t tap) {
  return out < out_size && tap < taps.num_taps
             ? taps.weights[static_cast<size_t>(out * taps.num_taps + tap)]
             : 0;
}

/// Arranges the weights in pairs of inputs, as the kernels for three channels read them.
AlignedFloats pairs_of(const Taps& taps, int64_t out_size) {
  AlignedFloats pairs;
  for (int64_t two = 0; two < out_size; two += 2)
    for (int64_t pair = 0; pair < taps.num_pairs(); ++pair)
      for (const int64_t out : {two, two + 1}) {
        const float first = weight_at(taps, out_size, out, 2 * pair);
        const float second = weight_at(taps, out_size, out, 2 * pair + 1);
        pairs.insert(pairs.end(), {first, first, first, second, second, second, 0, 0});
      }
  return pairs;
}

/// Returns the floats from one row to the next, so that each begins at a cache line.
int64_t aligned_row(int64_t num_floats) { return (num_floats + 15) / 16 * 16; }

}  // namespace

Taps triangle_taps(int64_t in_size, double begin, double end, int64_t out_size, bool mirrored) {
  // When an image shrinks, the filter is wider than a pixel (antialias).
  const double scale = (end - begin) / static_cast<double>(out_size);
  const double support = std::max(scale, 1.0);
  std::vector<OutputTaps> outputs(static_cast<size_t>(out_size));
  int64_t num_taps = 1;
  for (int64_t out = 0; out < out_size; ++out) {
    const double center = begin + (static_cast<double>(out) + 0.5) * scale;
    OutputTaps& taps = outputs[static_cast<size_t>(mirrored ? out_size - 1 - out : out)];
    taps = taps_around(center, support, in_size);
    num_taps = std::max(num_taps, static_cast<int64_t>(taps.weights.size()));
  }
  Taps all{num_taps, {}, {}, {}};
  for (OutputTaps& taps : outputs) {
    all.firsts.push_back(static_cast<int32_t>(taps.first));
    taps.weights.resize(static_cast<size_t>(num_taps), 0.0F);
    all.weights.insert(all.weights.end(), taps.weights.begin(), taps.weights.end());
  }
  all.pairs = pairs_of(all, out_size);
  return all;
}

const Taps& Resizer::taps_of(const Axis& axis, KnownTaps* known) {
  if (known->axis != axis)
    *known = {axis,
              triangle_taps(axis.in_size, axis.begin, axis.end, axis.out_size, axis.mirrored)};
  return known->taps;
}

void Resizer::blend_rows(const Pixels& in, const Taps& taps, const ChannelNumbers& by, int64_t row,
                         const TapRange& columns) {
  const PixelKernels& kernels = pixel_kernels();
  // Only the needed rows and columns are normalised.
  const int64_t row_bytes = in.width * in.channels, offset = columns.first * in.channels;
  const int64_t num = (columns.last - columns.first) * in.channels;
  const int64_t first = taps.firsts[static_cast<size_t>(row)];
  const float* weights = taps.weights.data() + row * taps.num_taps;
  int64_t num_rows = taps.num_taps;
  // Rows with weight 0 may be outside the image.
  while (num_rows > 1 && weights[num_rows - 1] == 0) --num_rows;
  row_taps_.clear();
  for (int64_t at = first; at < first + num_rows; ++at) {
    float* const slot = converted_.data() + at % taps.num_taps * aligned_row(num);
    if (at >= num_converted_) {
      kernels.scale_in_turn(in.data + at * row_bytes + offset, num, by, slot);
      num_converted_ = at + 1;
    }
    row_taps_.push_back(slot);
  }
  kernels.blend_rows(row_taps_.data(), weights, num_rows, num, blended_.data() + offset);
}

void Resizer::resize(const Pixels& in, const Box& box, bool mirrored, const Normalisation& by,
                     int64_t height, int64_t width, float* out_CHW) {
  const Taps& rows = taps_of({in.height, height, box.top, box.bottom, false}, &rows_);
  const Taps& columns = taps_of({in.width, width, box.left, box.right, mirrored}, &columns_);
  const TapRange read = columns_read(columns, in.width);
  // The kernels read past the last column: num_taps pixels, and 5 floats of a vector.
  blended_.resize(static_cast<size_t>((in.width + columns.num_taps) * in.channels + 5));
  const int64_t row_floats = aligned_row((read.last - read.first) * in.channels);
  converted_.resize(static_cast<size_t>(rows.num_taps * row_floats));
  // The converted rows of the last image are stale.
  num_converted_ = 0;
  const ChannelNumbers numbers(by);
  const PixelKernels& kernels = pixel_kernels();
  for (int64_t row = 0; row < height; ++row) {
    blend_rows(in, rows, numbers, row, read);
    float* const out = out_CHW + row * width;
    if (in.channels == 1) {
      kernels.columns_1(blended_.data(), columns, width, out);
      continue;
    }
    const std::array<float*, 3> outs{out, out + height * width, out + 2 * height * width};
    kernels.columns_3(blended_.data(), columns, width, outs.data());
  }
}

}  // namespace lockstep::data
