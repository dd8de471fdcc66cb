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

}  // namespace

Taps triangle_taps(int64_t in_size, double begin, double end, int64_t out_size, bool mirrored) {
  const double scale = (end - begin) / static_cast<double>(out_size);
  const double support = std::max(scale, 1.0);
  Taps taps{std::min(in_size, static_cast<int64_t>(std::ceil(support)) * 2 + 1), {}, {}};
  taps.firsts.resize(static_cast<size_t>(out_size));
  taps.weights.resize(static_cast<size_t>(out_size * taps.num_taps));
  std::vector<double> weights(static_cast<size_t>(taps.num_taps));
  for (int64_t out = 0; out < out_size; ++out) {
    const double center = begin + (static_cast<double>(out) + 0.5) * scale;
    const auto first =
        std::clamp(static_cast<int64_t>(center - support + 0.5), int64_t{0}, in_size - 1);
    const auto last = std::clamp(static_cast<int64_t>(center + support + 0.5), first + 1,
                                 std::min(in_size, first + taps.num_taps));
    double sum = 0;
    for (int64_t in = first; in < last; ++in) {
      const double distance = std::abs(static_cast<double>(in) - center + 0.5) / support;
      sum += weights[static_cast<size_t>(in - first)] = std::max(0.0, 1.0 - distance);
    }
    if (sum == 0) sum = weights[0] = 1;
    const auto place = static_cast<size_t>(mirrored ? out_size - 1 - out : out);
    taps.firsts[place] = static_cast<int32_t>(first);
    for (int64_t k = 0; k < last - first; ++k)
      taps.weights[place * static_cast<size_t>(taps.num_taps) + static_cast<size_t>(k)] =
          static_cast<float>(weights[static_cast<size_t>(k)] / sum);
  }
  return taps;
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
  blended_.resize(static_cast<size_t>((in.width + columns.num_taps) * in.channels + 1));
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
