#include "recal/quantization/int8_kernels.h"

#include <algorithm>
#include <array>

namespace lockstep::recal {
// The bits equal those of ATen's fake_quantize_*: the same operations in the same order.
namespace {

/// Block size. Every compiler vectorises loops with a constant count and one simple statement. The
/// remaining items are copied into a padded block.
constexpr int64_t kBlockItems = 16;
using Floats = std::array<float, kBlockItems>;
using Flags = std::array<bool, kBlockItems>;

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for magnitudes up
/// to 2^22. Source: IEEE 754, rounding of sums.
constexpr float kRounder = 12582912.0F;

struct Rounder {
  explicit Rounder(const Rounding& rounding)
      : inverse(1.0F / rounding.scale),
        scale(rounding.scale),
        lowest(rounding.lowest - rounding.zero_point),
        highest(rounding.highest - rounding.zero_point) {}

  float inverse, scale, lowest, highest;
};

/// Limits a value to a range. NaN stays NaN: both comparisons are false.
float cut(float value, float lowest, float highest) {
  value = value < lowest ? lowest : value;
  return value > highest ? highest : value;
}

/// Rounds to steps relative to the zero point. Values outside the range are first limited to one
/// step outside. That keeps kRounder exact, and compare_block() still sees them as outside.
Floats steps_of(const float* items, const Rounder& by) {
  Floats steps;
  for (int64_t i = 0; i < kBlockItems; ++i)
    steps[i] = cut(items[i] * by.inverse, by.lowest - 1, by.highest + 1) + kRounder - kRounder;
  return steps;
}

Floats cut_to_range(const Floats& steps, const Rounder& by) {
  Floats within;
  for (int64_t i = 0; i < kBlockItems; ++i) within[i] = cut(steps[i], by.lowest, by.highest);
  return within;
}

/// Scales the steps. item - item adds 0, or NaN if the item is not finite.
void scale_block(const float* items, const Floats& within, float scale, float* out) {
  for (int64_t i = 0; i < kBlockItems; ++i) out[i] = within[i] * scale + (items[i] - items[i]);
}

void compare_block(const Floats& steps, const Floats& within, bool* inside) {
  std::array<int32_t, kBlockItems> same;  // as wide as floats, so that the loop vectorises
  for (int64_t i = 0; i < kBlockItems; ++i) same[i] = steps[i] == within[i] ? 1 : 0;
  for (int64_t i = 0; i < kBlockItems; ++i) inside[i] = same[i] != 0;
}

void round_block(const float* items, const Rounder& by, float* out) {
  scale_block(items, cut_to_range(steps_of(items, by), by), by.scale, out);
}

void round_block(const float* items, const Rounder& by, float* out, bool* inside) {
  const Floats steps = steps_of(items, by);
  const Floats within = cut_to_range(steps, by);
  scale_block(items, within, by.scale, out);
  compare_block(steps, within, inside);
}

void keep_block(const float* items, const bool* inside, float* out) {
  // A product instead of a choice: NaN * 0 is NaN, so a faulty gradient stays visible.
  for (int64_t i = 0; i < kBlockItems; ++i) out[i] = items[i] * static_cast<float>(inside[i]);
}

/// Calls block(first item) for each whole block. Returns the number of items in whole blocks.
template <typename Block>
int64_t for_whole_blocks(int64_t num_items, Block block) {
  int64_t first = 0;
  for (; first + kBlockItems <= num_items; first += kBlockItems) block(first);
  return first;
}

template <typename T>
std::array<T, kBlockItems> padded(const T* values, int64_t count) {
  std::array<T, kBlockItems> block{};
  std::copy_n(values, count, block.begin());
  return block;
}

}  // namespace

void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out) {
  const Rounder by(rounding);
  const int64_t done = for_whole_blocks(
      num_items, [&](int64_t first) { round_block(items + first, by, out + first); });
  if (done == num_items) return;
  Floats last;
  round_block(padded(items + done, num_items - done).data(), by, last.data());
  std::copy_n(last.begin(), num_items - done, out + done);
}

void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out,
                 bool* inside) {
  const Rounder by(rounding);
  const int64_t done = for_whole_blocks(num_items, [&](int64_t first) {
    round_block(items + first, by, out + first, inside + first);
  });
  if (done == num_items) return;
  Floats last;
  Flags last_inside;
  round_block(padded(items + done, num_items - done).data(), by, last.data(), last_inside.data());
  std::copy_n(last.begin(), num_items - done, out + done);
  std::copy_n(last_inside.begin(), num_items - done, inside + done);
}

void keep_inside(const float* items, const bool* inside, int64_t num_items, float* out) {
  const int64_t done = for_whole_blocks(
      num_items, [&](int64_t first) { keep_block(items + first, inside + first, out + first); });
  if (done == num_items) return;
  Floats last;
  keep_block(padded(items + done, num_items - done).data(),
             padded(inside + done, num_items - done).data(), last.data());
  std::copy_n(last.begin(), num_items - done, out + done);
}

}  // namespace lockstep::recal
