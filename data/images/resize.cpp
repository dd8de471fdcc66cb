#include "data/images/resize.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::data {
namespace {

struct TapRange {
  int64_t first, last;
};

TapRange columns_read(const Taps& taps, int64_t in_size) {
  const auto [least, most] = std::minmax_element(taps.firsts.begin(), taps.firsts.end());
  return {*least, std::min(in_size, *most + taps.num_taps)};
}

/// Weights of one output, from the first input that counts to the last.
struct OutputTaps {
  int64_t first = 0;
  std::vector<float> weights;
};

OutputTaps taps_around(double center, double support, int64_t in_size) {
  const auto weight_of = [&](int64_t in) {
    return 1.0 - std::abs(static_cast<double>(in) + 0.5 - center) / support;
  };
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

void add_pairs(const std::vector<float>& weights, std::vector<float>* pairs) {
  for (size_t k = 0; k < weights.size(); k += 2) {
    const float first = weights[k], second = k + 1 < weights.size() ? weights[k + 1] : 0;
    pairs->insert(pairs->end(), {first, first, first, second, second, second, 0, 0});
  }
}

}  // namespace

Taps triangle_taps(int64_t in_size, double begin, double end, int64_t out_size, bool mirrored) {
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
    add_pairs(taps.weights, &all.pairs);
  }
  return all;
}

const Taps& Resizer::taps_of(const Axis& axis, KnownTaps* known) {
  if (known->axis != axis)
    *known = {axis,
              triangle_taps(axis.in_size, axis.begin, axis.end, axis.out_size, axis.mirrored)};
  return known->taps;
}

void Resizer::blend_rows(const Pixels& in, const Taps& taps, int64_t row, int64_t first_column,
                         int64_t num_columns) {
  const int64_t row_bytes = in.width * in.channels, first = taps.firsts[static_cast<size_t>(row)];
  const float* weights = taps.weights.data() + row * taps.num_taps;
  float* const out = blended_.data() + first_column * in.channels;
  for (int64_t tap = 0; tap < taps.num_taps; tap += 4) {
    std::array<const uint8_t*, 4> rows{};
    std::array<float, 4> four{};
    for (int64_t k = 0; k < 4; ++k) {
      const bool is_there = tap + k < taps.num_taps;
      const int64_t at = std::min(first + tap + (is_there ? k : 0), in.height - 1);
      rows[static_cast<size_t>(k)] = in.data + at * row_bytes + first_column * in.channels;
      four[static_cast<size_t>(k)] = is_there ? weights[tap + k] : 0.0F;
    }
    if (tap > 0 && std::all_of(four.begin(), four.end(), [](float w) { return w == 0; })) break;
    pixel_kernels().add_rows(rows.data(), four.data(), num_columns * in.channels, tap > 0, out);
  }
}

void Resizer::resize(const Pixels& in, const Box& box, bool mirrored, const Normalisation& by,
                     int64_t height, int64_t width, float* out_CHW) {
  const Taps& rows = taps_of({in.height, height, box.top, box.bottom, false}, &rows_);
  const Taps& columns = taps_of({in.width, width, box.left, box.right, mirrored}, &columns_);
  const TapRange read = columns_read(columns, in.width);
  blended_.resize(static_cast<size_t>((in.width + columns.num_taps) * in.channels + 5));
  const PixelKernels& kernels = pixel_kernels();
  for (int64_t row = 0; row < height; ++row) {
    blend_rows(in, rows, row, read.first, read.last - read.first);
    float* const out = out_CHW + row * width;
    if (in.channels == 1) {
      kernels.columns_1(blended_.data(), columns, width, by.scales[0], by.shifts[0], out);
      continue;
    }
    const std::array<float*, 3> outs{out, out + height * width, out + 2 * height * width};
    kernels.columns_3(blended_.data(), columns, width, by.scales.data(), by.shifts.data(),
                      outs.data());
  }
}

}  // namespace lockstep::data
