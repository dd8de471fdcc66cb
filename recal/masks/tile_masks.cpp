#include <array>
#include <bit>
#include <cmath>

#include "base/simd/bit_mask.h"
#include "recal/masks/structured_masks.h"

// 2:4 transposable: 4×4 tiles that prune two elements of each row and of each column.
namespace lockstep::recal {
namespace {

constexpr int64_t kSide = 4, kPairsOfARow = 6, kItems = kSide * kSide;

/// Pruned elements of a row, in the order of memory. Bit j: element j.
constexpr std::array<unsigned, kPairsOfARow> kPairs = {0b0011, 0b0101, 0b1001,
                                                       0b0110, 0b1010, 0b1100};

/// Pair of each row of a tile, as indexes of kPairs. `upper`: those of rows 0 and 1, 6 a + b;
/// `lower`: those of rows 2 and 3.
struct TilePattern {
  size_t upper = 0, lower = 0;
  constexpr unsigned row(size_t index) const {
    const size_t two = index < 2 ? upper : lower;
    return kPairs[index % 2 == 0 ? two / kPairsOfARow : two % kPairsOfARow];
  }
};

constexpr size_t kNumPatterns = 90, kPairsOfTwoRows = kPairsOfARow * kPairsOfARow;

constexpr std::array<TilePattern, kNumPatterns> make_patterns() {
  std::array<TilePattern, kNumPatterns> patterns;
  size_t num = 0;
  for (size_t upper = 0; upper < kPairsOfTwoRows; ++upper)
    for (size_t lower = 0; lower < kPairsOfTwoRows; ++lower) {
      const TilePattern tile{upper, lower};
      // The lower rows must prune the columns that both upper rows keep, and vice versa.
      const unsigned both_upper = tile.row(0) & tile.row(1), any_upper = tile.row(0) | tile.row(1);
      const unsigned both_lower = tile.row(2) & tile.row(3), any_lower = tile.row(2) | tile.row(3);
      if (both_upper == (~any_lower & 0xfU) && both_lower == (~any_upper & 0xfU))
        patterns[num++] = tile;
    }
  return patterns;
}
constexpr std::array<TilePattern, kNumPatterns> kPatterns = make_patterns();

/// Largest magnitude that counts, also for infinity and NaN: sums stay finite.
constexpr double kMost = 1e300;

/// Costs of pruning each element of a tile. An element already pruned costs nothing, any other one
/// more than the magnitudes of all together.
struct TileCosts {
  std::array<double, kItems> items;

  /// magnitudes: rows of `stride` elements; living: bit 4 r + j is that of element (r, j).
  TileCosts(const double* magnitudes, int64_t stride, unsigned living) {
    double largest = 0;
    for (int64_t i = 0; i < kItems; ++i) {
      // fmin() ignores a NaN.
      items[i] = std::fmin(magnitudes[i / kSide * stride + i % kSide], kMost);
      largest = std::fmax(largest, items[i]);
    }
    if (living == (1U << kItems) - 1) return;
    // A power of two, so that it rounds magnitudes as little as possible.
    const double more = largest > 0 ? std::ldexp(1.0, std::ilogb(largest) + 5) : 1;
    for (size_t i = 0; i < kItems; ++i) items[i] = (living >> i & 1U) != 0 ? items[i] + more : 0;
  }

  using TwoRows = std::array<double, kPairsOfTwoRows>;
  /// Returns the costs of each two pairs in this row and the next.
  TwoRows of_two_rows(size_t first) const {
    std::array<double, 2 * kPairsOfARow> pairs;
    size_t num = 0;
    for (size_t row = first; row < first + 2; ++row)
      for (size_t j = 0; j < kSide; ++j)
        for (size_t k = j + 1; k < kSide; ++k)
          pairs[num++] = items[kSide * row + j] + items[kSide * row + k];
    TwoRows costs;
    for (size_t i = 0; i < costs.size(); ++i)
      costs[i] = pairs[i / kPairsOfARow] + pairs[kPairsOfARow + i % kPairsOfARow];
    return costs;
  }

  TilePattern cheapest() const {
    const TwoRows upper = of_two_rows(0), lower = of_two_rows(2);
    const TilePattern* best = kPatterns.data();
    double least = upper[best->upper] + lower[best->lower];
    for (const TilePattern& pattern : kPatterns) {
      const double cost = upper[pattern.upper] + lower[pattern.lower];
      if (cost >= least) continue;
      least = cost;
      best = &pattern;
    }
    return *best;
  }
};

}  // namespace

Prunable prunable_in_tiles(const at::Tensor& weight, const uint8_t* kept) {
  const int64_t num_outputs = weight.size(0), num_inputs = weight.size(1);
  Prunable result;
  result.bits.resize(static_cast<size_t>(num_mask_bytes(weight.numel())));
  for (int64_t output = 0; output < num_outputs; output += kSide) {
    // Four rows at a time: a copy of the whole weight would need memory.
    const at::Tensor magnitudes = weight.narrow(0, output, kSide).to(at::kDouble).abs();
    for (int64_t input = 0; input < num_inputs; input += kSide) {
      const auto item_of = [&](int64_t row) { return (output + row) * num_inputs + input; };
      // The four bits of a row are within one byte, since all extents are multiples of four.
      unsigned living = 0;
      for (int64_t row = 0; row < kSide; ++row)
        living |= (kept[item_of(row) >> 3] >> (item_of(row) & 7) & 0xfU) << (kSide * row);
      const TilePattern pattern =
          TileCosts(magnitudes.const_data_ptr<double>() + input, num_inputs, living).cheapest();
      result.num_pruned += kItems / 2;
      for (int64_t row = 0; row < kSide; ++row) {
        const unsigned chosen =
            pattern.row(static_cast<size_t>(row)) & (living >> (kSide * row) & 0xfU);
        result.num_pruned -= std::popcount(chosen);
        uint8_t& byte = result.bits[static_cast<size_t>(item_of(row) >> 3)];
        byte = static_cast<uint8_t>(byte | chosen << (item_of(row) & 7));
      }
    }
  }
  return result;
}

}  // namespace lockstep::recal
