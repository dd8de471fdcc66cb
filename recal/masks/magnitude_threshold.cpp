#include "recal/masks/magnitude_threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/simd/bit_mask.h"
#include "recal/masks/magnitude_kernels.h"

namespace lockstep::recal {
namespace {

/// Smallest number of elements for which a sample costs less than a selection among all.
constexpr int64_t kMinSampled = 16'384;
/// Half width of the bracket around the expected place in the sample. The threshold is outside with
/// a chance of about 6e-5 (two-sided normal tail). That holds if the order of the elements does not
/// depend on the sampled places. A miss costs time only: narrow_down() then finds the threshold.
constexpr double kStandardDeviations = 4;
/// Least number of candidates that fit, so that small samples do not overflow by chance.
constexpr int64_t kMinRoom = 16'384;
/// Bits that one histogram pass resolves: 4,096 counters, 32 KiB.
constexpr int kHistogramBits = 12;

template <typename Bits>
struct Search {
  std::span<const MagnitudePart<Bits>> parts;
  int64_t num_items = 0;
  int64_t num_kept = 0;
  int64_t num_smallest = 0;
};

template <typename Bits>
struct SampledBracket {
  Bracket<Bits> bracket;
  int64_t num_expected = 0;  ///< expected number of elements inside
};

/// Sample size n^(2/3): sampling and selection among the candidates then cost about the same.
int64_t num_samples_of(int64_t num_items) {
  const double root = std::cbrt(static_cast<double>(num_items));
  return static_cast<int64_t>(root * root);
}

/// Magnitudes of kept elements at fixed pseudo-random places, one in each of equal intervals.
/// Depends on sizes only, so that all ranks draw the same sample.
template <typename Bits>
std::vector<Bits> sample_of(const Search<Bits>& search) {
  const int64_t num_samples = num_samples_of(search.num_items);
  const CounterRandom random{num_samples};
  std::vector<Bits> sample;
  sample.reserve(static_cast<size_t>(num_samples));
  for (const MagnitudePart<Bits>& part : search.parts) {
    const auto num_here = static_cast<int64_t>(
        static_cast<double>(num_samples) *
        (static_cast<double>(part.num_items) / static_cast<double>(search.num_items)));
    const int64_t stretch = num_here > 0 ? part.num_items / num_here : 0;
    for (int64_t i = 0; i < num_here; ++i) {
      const int64_t place =
          i * stretch + static_cast<int64_t>(
                            random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(stretch)));
      if (is_kept(part.kept, place)) sample.push_back(magnitude(part.items[place]));
    }
  }
  return sample;
}

/// Returns the element of this rank in the sample, partly sorting the sample from `first` on.
/// Returns the outermost magnitude if the rank is outside the sample.
template <typename Bits>
Bits ranked(std::vector<Bits>* sample, int64_t rank, int64_t first) {
  const auto num_samples = static_cast<int64_t>(sample->size());
  if (rank < 0) return 0;
  if (rank >= num_samples) return kMagnitudeBits<Bits>;
  std::nth_element(sample->begin() + first, sample->begin() + rank, sample->end());
  return (*sample)[static_cast<size_t>(rank)];
}

template <typename Bits>
SampledBracket<Bits> sampled_bracket(const Search<Bits>& search) {
  if (search.num_items < kMinSampled) return {{}, search.num_kept};
  std::vector<Bits> sample = sample_of(search);
  const auto num_samples = static_cast<double>(sample.size());
  if (sample.empty()) return {{}, search.num_kept};
  const double fraction =
      static_cast<double>(search.num_smallest) / static_cast<double>(search.num_kept);
  // The threshold's rank in the sample is binomial: variance n p (1 - p). The 8 keeps a minimum
  // width where p is near 0 or 1.
  const double reach = kStandardDeviations * std::sqrt(num_samples * fraction * (1 - fraction)) + 8;
  const auto low = static_cast<int64_t>(std::floor(num_samples * fraction - reach));
  const auto middle = static_cast<int64_t>(num_samples * fraction);
  const auto high = static_cast<int64_t>(std::ceil(num_samples * fraction + reach));
  SampledBracket<Bits> result;
  result.bracket.lowest = ranked(&sample, low, 0);
  // Each nth_element leaves a partition, so the next one only looks from the previous rank on.
  const Bits guess = ranked(&sample, middle, std::max<int64_t>(low, 0));
  result.bracket.highest = ranked(&sample, high, middle);
  // Many equal values, such as rounded weights: counting a single value needs no room.
  if (static_cast<double>(std::count(sample.begin(), sample.end(), guess)) > 2 * reach)
    return {{guess, guess}, 0};
  result.num_expected =
      static_cast<int64_t>(2 * reach / num_samples * static_cast<double>(search.num_kept));
  return result;
}

/// Candidates for the threshold: the magnitudes inside a bracket.
template <typename Bits>
struct Candidates {
  BracketCounts counts;
  std::unique_ptr<Bits[]> inside;
  int64_t room = 0;

  /// True if the num_smallest-th magnitude lies inside the bracket.
  bool hold(int64_t num_smallest) const {
    return counts.num_below < num_smallest && num_smallest <= counts.num_below + counts.num_inside;
  }
  /// True if all magnitudes of the bracket were stored.
  bool are_complete() const { return counts.num_inside <= room; }
};

template <typename Bits>
Candidates<Bits> collect(const Search<Bits>& search, const Bracket<Bits>& bracket, int64_t room,
                         SimdPath path) {
  Candidates<Bits> result;
  result.room = room;
  result.inside = std::make_unique_for_overwrite<Bits[]>(static_cast<size_t>(room + kCollectSlack));
  for (const MagnitudePart<Bits>& part : search.parts) {
    const int64_t num_stored = std::min(result.counts.num_inside, room);
    const BracketCounts counts =
        magnitude_kernels<Bits>(path).collect(part.items, part.kept, part.num_items, bracket,
                                              result.inside.get() + num_stored, room - num_stored);
    result.counts.num_below += counts.num_below;
    result.counts.num_inside += counts.num_inside;
  }
  return result;
}

/// Exact selection: the nth candidate is the limit; ties are what it takes to reach num_smallest.
template <typename Bits>
Threshold<Bits> select_among(Candidates<Bits>* candidates, int64_t num_smallest) {
  Bits* const first = candidates->inside.get();
  Bits* const last = first + candidates->counts.num_inside;
  Bits* const nth = first + (num_smallest - candidates->counts.num_below - 1);
  std::nth_element(first, nth, last);
  const int64_t num_below =
      candidates->counts.num_below +
      std::count_if(first, last, [limit = *nth](Bits found) { return found < limit; });
  return {*nth, num_smallest - num_below};
}

/// Number of kept magnitudes in each of the bracket's equal bins of 2^shift values.
template <typename Bits>
std::vector<int64_t> histogram(const Search<Bits>& search, const Bracket<Bits>& bracket,
                               int shift) {
  std::vector<int64_t> num_by_bin(size_t{1} << kHistogramBits);
  for (const MagnitudePart<Bits>& part : search.parts)
    for (int64_t first = 0; first < part.num_items; first += 8)
      for (unsigned byte = part.kept[first / 8]; byte != 0; byte &= byte - 1) {
        const Bits found = magnitude(part.items[first + std::countr_zero(byte)]);
        if (found < bracket.lowest || found > bracket.highest) continue;
        ++num_by_bin[static_cast<size_t>(static_cast<Bits>(found - bracket.lowest) >> shift)];
      }
  return num_by_bin;
}

/// Finds the threshold for any input by radix search: each pass fixes the next kHistogramBits bits.
template <typename Bits>
Threshold<Bits> narrow_down(const Search<Bits>& search) {
  Bracket<Bits> bracket;
  int64_t num_below = 0;
  for (int num_bits = static_cast<int>(8 * sizeof(Bits)) - 1; num_bits > 0;) {
    const int shift = std::max(0, num_bits - kHistogramBits);
    const std::vector<int64_t> num_by_bin = histogram(search, bracket, shift);
    size_t bin = 0;
    // The bin in which the running count reaches num_smallest contains the threshold.
    while (num_below + num_by_bin[bin] < search.num_smallest) num_below += num_by_bin[bin++];
    bracket.lowest = static_cast<Bits>(bracket.lowest + (static_cast<Bits>(bin) << shift));
    bracket.highest = static_cast<Bits>(bracket.lowest + static_cast<Bits>((Bits{1} << shift) - 1));
    num_bits = shift;
  }
  return {bracket.lowest, search.num_smallest - num_below};
}

template <typename Bits>
Search<Bits> search_for(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest) {
  Search<Bits> search{parts, 0, 0, num_smallest};
  for (const MagnitudePart<Bits>& part : parts) {
    search.num_items += part.num_items;
    search.num_kept += count_kept(part.kept, part.num_items);
  }
  check(num_smallest > 0 && num_smallest <= search.num_kept,
        "a threshold needs at least as many items as it drops");
  return search;
}

}  // namespace

template <typename Bits>
Threshold<Bits> find_threshold(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest,
                               SimdPath path) {
  const Search<Bits> search = search_for(parts, num_smallest);
  const SampledBracket<Bits> sampled = sampled_bracket(search);
  const bool is_one_value = sampled.bracket.lowest == sampled.bracket.highest;
  const int64_t room = is_one_value ? 0 : 2 * sampled.num_expected + kMinRoom;
  Candidates<Bits> candidates = collect(search, sampled.bracket, room, path);
  // narrow_down() when the sample missed the threshold, or when ties overflowed the room.
  if (!candidates.hold(num_smallest)) return narrow_down(search);
  if (is_one_value) return {sampled.bracket.lowest, num_smallest - candidates.counts.num_below};
  if (!candidates.are_complete()) return narrow_down(search);
  return select_among(&candidates, num_smallest);
}

template <typename Bits>
void drop_smallest(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest,
                   SimdPath path) {
  if (num_smallest == 0) return;
  Threshold<Bits> threshold = find_threshold(parts, num_smallest, path);
  for (const MagnitudePart<Bits>& part : parts)
    threshold.num_ties -= magnitude_kernels<Bits>(path).drop_below(
        part.items, part.kept, part.num_items, threshold.limit, threshold.num_ties);
}

template Threshold<uint16_t> find_threshold(std::span<const MagnitudePart<uint16_t>>, int64_t,
                                            SimdPath);
template Threshold<uint32_t> find_threshold(std::span<const MagnitudePart<uint32_t>>, int64_t,
                                            SimdPath);
template Threshold<uint64_t> find_threshold(std::span<const MagnitudePart<uint64_t>>, int64_t,
                                            SimdPath);
template void drop_smallest(std::span<const MagnitudePart<uint16_t>>, int64_t, SimdPath);
template void drop_smallest(std::span<const MagnitudePart<uint32_t>>, int64_t, SimdPath);
template void drop_smallest(std::span<const MagnitudePart<uint64_t>>, int64_t, SimdPath);

}  // namespace lockstep::recal
