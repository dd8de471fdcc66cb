// Kernels of KeptWork. A tile of pixels is kept in registers while the weights of an output channel
// pass: one broadcast and one load per vector and weight.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "infer/sparse/kept_kernels.cpp"
#include "base/simd/targets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include <hwy/highway.h>

#include "base/simd/lanes.h"
#include "infer/sparse/kept_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::infer::HWY_NAMESPACE {
namespace {

using lockstep::HWY_NAMESPACE::kNumLanes;
using lockstep::HWY_NAMESPACE::Lanes;
namespace hn = hwy::HWY_NAMESPACE;

using Tag = Lanes<float>;
using Vector = hn::Vec<Tag>;
constexpr int64_t kLanes = kNumLanes<float>;
constexpr float kNone = -std::numeric_limits<float>::infinity();  // below all items

/// Returns the larger item of each lane; a NaN wins.
template <typename V>
HWY_INLINE V larger(V one, V other) {
  return hn::IfThenElse(hn::Or(hn::Gt(other, one), hn::IsNaN(other)), other, one);
}

/// Sums of a tile: kVectors vectors of pixels. Sums of kSets weights run next to each other, since
/// an addition takes several cycles.
template <int kVectors, int kSets>
using Sums = std::array<std::array<Vector, kVectors>, kSets>;

/// Adds a weight.
template <int kVectors, bool kTakesMax>
HWY_INLINE void add_weight(const KeptWork& work, const float* inputs, int64_t k,
                           std::array<Vector, kVectors>* sums) {
  const Tag d;
  const auto value = hn::BitCast(d, hn::Set(hn::RebindToSigned<Tag>(), work.bits_K[k]));
  const float* const from = inputs + work.offsets_K[k];
  for (int v = 0; v < kVectors; ++v) {
    const auto items = hn::LoadU(d, from + v * kLanes);
    (*sums)[v] = kTakesMax ? larger((*sums)[v], items) : hn::MulAdd(value, items, (*sums)[v]);
  }
}

/// Adds the weights begin to end.
template <int kVectors, int kSets, bool kTakesMax>
HWY_INLINE void add_weights(const KeptWork& work, const float* inputs, int64_t begin, int64_t end,
                            Sums<kVectors, kSets>* sums) {
  int64_t k = begin;
  for (; k + kSets <= end; k += kSets)
    for (int set = 0; set < kSets; ++set)
      add_weight<kVectors, kTakesMax>(work, inputs, k + set, &(*sums)[set]);
  for (; k < end; ++k) add_weight<kVectors, kTakesMax>(work, inputs, k, &(*sums)[0]);
}

/// Clamps, and stores pixels only.
template <int kVectors>
HWY_INLINE void finish(const KeptWork& work, int64_t place, int64_t p,
                       const std::array<Vector, kVectors>& sums) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> bits;
  const auto low = hn::Set(d, work.low), high = hn::Set(d, work.high);
  for (int v = 0; v < kVectors; ++v) {
    // The bound is the first operand: x86 then returns a NaN of the sum.
    const auto sum = hn::Min(high, hn::Max(low, sums[v]));
    const auto mask = hn::LoadU(bits, work.mask + p + v * kLanes);
    hn::StoreU(hn::And(sum, hn::BitCast(d, mask)), d, work.outputs + place + v * kLanes);
  }
}

/// Rows whose outputs and residuals are fetched before they are computed. Rows are far from each
/// other, so processors do not foresee them.
constexpr int64_t kAhead = 4;

template <int kVectors>
HWY_INLINE void fetch_row(const KeptWork& work, int64_t o, int64_t p) {
  const int64_t place = work.channels_O[o] * work.output_stride + p;
  for (int v = 0; v < kVectors; ++v) {
    if (work.residual != nullptr) __builtin_prefetch(work.residual + place + v * kLanes, 0);
    __builtin_prefetch(work.outputs + place + v * kLanes, 1);
  }
}

/// Returns the sums of a row before a block's weights: bias and residual, or unfinished sums, which
/// wait in the outputs.
template <int kVectors, int kSets, bool kTakesMax>
HWY_INLINE Sums<kVectors, kSets> first_sums(const KeptWork& work, int64_t block, int64_t channel,
                                            int64_t place) {
  const Tag d;
  Sums<kVectors, kSets> sums;
  for (int set = 0; set < kSets; ++set)
    for (int v = 0; v < kVectors; ++v) sums[set][v] = hn::Set(d, kTakesMax ? kNone : 0.0F);
  const bool is_first = block == 0;
  const float* const from = is_first ? work.residual : work.outputs;
  if (from != nullptr)
    for (int v = 0; v < kVectors; ++v) sums[0][v] = hn::LoadU(d, from + place + v * kLanes);
  if (is_first && !kTakesMax)
    for (int v = 0; v < kVectors; ++v)
      sums[0][v] = hn::Add(sums[0][v], hn::Set(d, work.bias_O[channel]));
  return sums;
}

/// Computes the pixels from p on for a block of weights. The outputs may be the memory of the
/// residual.
template <int kVectors, int kSets, bool kTakesMax>
HWY_INLINE void block_of_tile(const KeptWork& work, int64_t block, int64_t begin_O, int64_t end_O,
                              int64_t p) {
  const Tag d;
  const bool is_last = block + 1 == work.num_blocks;
  for (int64_t o = begin_O; o < end_O; ++o) {
    const int64_t channel = work.channels_O[o], place = channel * work.output_stride + p;
    if (is_last) fetch_row<kVectors>(work, std::min(o + kAhead, end_O - 1), p);
    auto sums = first_sums<kVectors, kSets, kTakesMax>(work, block, channel, place);
    const int64_t* const begin = work.begins_BO + block * work.num_rows + o;
    add_weights<kVectors, kSets, kTakesMax>(work, work.inputs + p, begin[0], begin[1], &sums);
    auto& all = sums[0];
    for (int set = 1; set < kSets; ++set)
      for (int v = 0; v < kVectors; ++v)
        all[v] = kTakesMax ? larger(all[v], sums[set][v]) : hn::Add(all[v], sums[set][v]);
    if (is_last) {
      finish<kVectors>(work, place, p, all);
      continue;
    }
    for (int v = 0; v < kVectors; ++v) hn::StoreU(all[v], d, work.outputs + place + v * kLanes);
  }
}

template <int kVectors, int kSets>
HWY_INLINE void tile(const KeptWork& work, int64_t begin_O, int64_t end_O, int64_t p) {
  for (int64_t block = 0; block < work.num_blocks; ++block)
    if (work.takes_max)
      block_of_tile<kVectors, kSets, true>(work, block, begin_O, end_O, p);
    else
      block_of_tile<kVectors, kSets, false>(work, block, begin_O, end_O, p);
}

void pixels(const KeptWork& work, int64_t begin_O, int64_t end_O, int64_t begin_P, int64_t end_P) {
  int64_t p = begin_P;
  for (; p + 8 * kLanes <= end_P; p += 8 * kLanes) tile<8, 1>(work, begin_O, end_O, p);
  for (; p + 4 * kLanes <= end_P; p += 4 * kLanes) tile<4, 2>(work, begin_O, end_O, p);
  for (; p + 2 * kLanes <= end_P; p += 2 * kLanes) tile<2, 4>(work, begin_O, end_O, p);
  for (; p < end_P; p += kLanes) tile<1, 8>(work, begin_O, end_O, p);
}

void sample(const KeptWork& work, int64_t begin_O, int64_t end_O) {
  constexpr int kSets = 4;
  const Tag d;
  const hn::RebindToSigned<Tag> places;
  for (int64_t o = begin_O; o < end_O; ++o) {
    std::array<Vector, kSets> sums;
    for (Vector& sum : sums) sum = hn::Zero(d);
    const int64_t end = work.begins_BO[o + 1];
    int64_t k = work.begins_BO[o];
    for (; k + kSets * kLanes <= end; k += kSets * kLanes)
      for (int s = 0; s < kSets; ++s) {
        const int64_t at = k + s * kLanes;
        const auto items = hn::GatherIndex(d, work.inputs, hn::LoadU(places, work.offsets_K + at));
        const auto values = hn::BitCast(d, hn::LoadU(places, work.bits_K + at));
        sums[s] = hn::MulAdd(values, items, sums[s]);
      }
    const int64_t channel = work.channels_O[o];
    float sum = work.bias_O[channel];
    for (const Vector& part : sums) sum += hn::GetLane(hn::SumOfLanes(d, part));
    for (; k < end; ++k)
      sum += std::bit_cast<float>(work.bits_K[k]) * work.inputs[work.offsets_K[k]];
    if (work.residual != nullptr) sum += work.residual[channel];
    // A NaN passes both comparisons.
    work.outputs[channel] = sum < work.low ? work.low : sum > work.high ? work.high : sum;
  }
}

/// Loads each second item. With more than one lane, the one after the last is read too.
template <typename D>
HWY_INLINE hn::Vec<D> load_even(D d, const hn::TFromD<D>* from) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1)
    return hn::ConcatEven(d, hn::LoadU(d, from + hn::Lanes(d)), hn::LoadU(d, from));
#endif
  return hn::Set(d, *from);
}

/// Computes whole vectors of even_pixels(). Returns the first pixel that is left.
template <bool kTakesMax, typename D>
HWY_INLINE int64_t even_vectors(D d, const KeptWork& work, int64_t o, const float* inputs,
                                int64_t p, int64_t begin, int64_t num) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t channel = work.channels_O[o], place = channel * work.output_stride + p;
  const auto low = hn::Set(d, work.low), high = hn::Set(d, work.high);
  for (; begin + lanes <= num; begin += lanes) {
    auto sum = hn::Set(d, kTakesMax ? kNone : work.bias_O[channel]);
    for (int64_t k = work.begins_BO[o]; k < work.begins_BO[o + 1]; ++k) {
      const auto items = load_even(d, inputs + work.offsets_K[k] + 2 * begin);
      const auto value = hn::Set(d, std::bit_cast<float>(work.bits_K[k]));
      sum = kTakesMax ? larger(sum, items) : hn::MulAdd(value, items, sum);
    }
    if (work.residual != nullptr) sum = hn::Add(sum, hn::LoadU(d, work.residual + place + begin));
    hn::StoreU(hn::Min(high, hn::Max(low, sum)), d, work.outputs + place + begin);
  }
  return begin;
}

template <bool kTakesMax>
void even_row(const KeptWork& work, int64_t o, const float* inputs, int64_t p, int64_t num) {
  int64_t i = even_vectors<kTakesMax>(Tag(), work, o, inputs, p, 0, num);
  i = even_vectors<kTakesMax>(hn::CappedTag<float, 4>(), work, o, inputs, p, i, num);
  even_vectors<kTakesMax>(hn::CappedTag<float, 1>(), work, o, inputs, p, i, num);
}

void even_pixels(const KeptWork& work, int64_t o, const float* inputs, int64_t p, int64_t num) {
  const auto run = work.takes_max ? even_row<true> : even_row<false>;
  run(work, o, inputs, p, num);
}

/// Copies whole vectors of each second item. Returns the first item that is left.
template <typename D>
HWY_INLINE int64_t copy_even(D d, const int32_t* from, int64_t begin, int64_t num, int32_t* to) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = lanes > 1 ? num - 1 : num;  // the last item may be the last of its memory
  for (; begin + lanes <= end; begin += lanes)
    hn::StoreU(load_even(d, from + 2 * begin), d, to + begin);
  return begin;
}

void even_items(const int32_t* from, int64_t num, int32_t* to) {
  int64_t i = copy_even(Lanes<int32_t>(), from, 0, num, to);
  i = copy_even(hn::CappedTag<int32_t, 4>(), from, i, num, to);
  copy_even(hn::CappedTag<int32_t, 1>(), from, i, num, to);
}

constexpr KeptKernels kKernels{pixels, sample, even_pixels, even_items};

}  // namespace
}  // namespace lockstep::infer::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::infer {

const KeptKernels& kept_kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::infer

#endif
