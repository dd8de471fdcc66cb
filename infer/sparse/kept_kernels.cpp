// Kernels of KeptWork. A tile of pixels is kept in registers while the weights of an output channel
// pass: one broadcast and one load per vector and weight.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "infer/sparse/kept_kernels.cpp"
#include "base/simd/targets.h"

#include <algorithm>
#include <array>
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
HWY_INLINE Vector larger(Vector one, Vector other) {
  return hn::IfThenElse(hn::Or(hn::Gt(other, one), hn::IsNaN(other)), other, one);
}

/// Computes kVectors vectors of pixels from pixel p on. Sums of kSets weights run next to each
/// other, since an addition takes several cycles.
template <int kVectors, int kSets, bool kTakesMax>
HWY_INLINE void block_of_tile(const KeptWork& work, int64_t block, int64_t begin_O, int64_t end_O,
                              int64_t p) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> bits;
  const float* const inputs = work.inputs + p;
  const auto add = [](Vector value, Vector items, Vector* sum) HWY_ATTR {
    *sum = kTakesMax ? larger(*sum, items) : hn::MulAdd(value, items, *sum);
  };
  const auto low = hn::Set(d, work.low), high = hn::Set(d, work.high);
  for (int64_t o = begin_O; o < end_O; ++o) {
    const int64_t channel = work.channels_O[o];
    float* const outputs = work.outputs + channel * work.output_stride + p;
    std::array<std::array<Vector, kVectors>, kSets> sums;
    for (int v = 0; v < kVectors; ++v)
      sums[0][v] =
          block == 0 ? hn::Set(d, work.bias_O[channel]) : hn::LoadU(d, outputs + v * kLanes);
    for (int s = 1; s < kSets; ++s)
      for (int v = 0; v < kVectors; ++v) sums[s][v] = hn::Zero(d);
    const int64_t* const begin = work.begins_OB + o * work.num_blocks + block;
    const int64_t end = begin[1];
    int64_t k = begin[0];
    for (; k + kSets <= end; k += kSets)
      for (int s = 0; s < kSets; ++s) {
        const auto value = hn::Set(d, work.values_K[k + s]);
        const float* const from = inputs + work.offsets_K[k + s];
        for (int v = 0; v < kVectors; ++v) add(value, hn::LoadU(d, from + v * kLanes), &sums[s][v]);
      }
    for (; k < end; ++k) {
      const auto value = hn::Set(d, work.values_K[k]);
      const float* const from = inputs + work.offsets_K[k];
      for (int v = 0; v < kVectors; ++v) add(value, hn::LoadU(d, from + v * kLanes), &sums[0][v]);
    }
    for (int v = 0; v < kVectors; ++v) {
      auto sum = sums[0][v];
      for (int s = 1; s < kSets; ++s)
        sum = kTakesMax ? larger(sum, sums[s][v]) : hn::Add(sum, sums[s][v]);
      if (block + 1 < work.num_blocks) {
        hn::StoreU(sum, d, outputs + v * kLanes);
        continue;
      }
      if (work.residual != nullptr)
        sum = hn::Add(sum,
                      hn::LoadU(d, work.residual + channel * work.output_stride + p + v * kLanes));
      // The bound is the first operand: x86 then returns a NaN of the sum.
      sum = hn::Min(high, hn::Max(low, sum));
      const auto mask = hn::LoadU(bits, work.mask + p + v * kLanes);
      hn::StoreU(hn::And(sum, hn::BitCast(d, mask)), d, outputs + v * kLanes);
    }
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
    const int64_t end = work.begins_OB[(o + 1) * work.num_blocks];
    int64_t k = work.begins_OB[o * work.num_blocks];
    for (; k + kSets * kLanes <= end; k += kSets * kLanes)
      for (int s = 0; s < kSets; ++s) {
        const int64_t at = k + s * kLanes;
        const auto items = hn::GatherIndex(d, work.inputs, hn::LoadU(places, work.offsets_K + at));
        sums[s] = hn::MulAdd(hn::LoadU(d, work.values_K + at), items, sums[s]);
      }
    const int64_t channel = work.channels_O[o];
    float sum = work.bias_O[channel];
    for (const Vector& part : sums) sum += hn::GetLane(hn::SumOfLanes(d, part));
    for (; k < end; ++k) sum += work.values_K[k] * work.inputs[work.offsets_K[k]];
    if (work.residual != nullptr) sum += work.residual[channel];
    // A NaN passes both comparisons.
    work.outputs[channel] = sum < work.low ? work.low : sum > work.high ? work.high : sum;
  }
}

constexpr KeptKernels kKernels{pixels, sample};

}  // namespace
}  // namespace lockstep::infer::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::infer {

const KeptKernels& kept_kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::infer

#endif
