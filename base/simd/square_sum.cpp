#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/simd/square_sum.cpp"
#include "base/simd/targets.h"

#include "base/simd/square_sum.h"

#include "base/simd/lanes.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::HWY_NAMESPACE {
namespace {

double sum_squares(const float* items, int64_t num_items) {
  const Lanes<double> doubles;
  const hn::Rebind<float, Lanes<double>> floats;
  constexpr int64_t kLanes = kNumLanes<double>, kParts = kSquareAccumulators / kLanes;
  hn::Vec<Lanes<double>> sums[kParts];
  for (auto& sum : sums) sum = hn::Zero(doubles);
  int64_t i = 0;
  for (; i + kSquareAccumulators <= num_items; i += kSquareAccumulators)
    for (int64_t part = 0; part < kParts; ++part) {
      const auto narrow = hn::LoadU(floats, items + i + part * kLanes);
      const auto wide = hn::PromoteTo(doubles, narrow);
      sums[part] = hn::MulAdd(wide, wide, sums[part]);
    }
  SquareAccumulators each;
  for (int64_t part = 0; part < kParts; ++part)
    hn::StoreU(sums[part], doubles, each.data() + part * kLanes);
  for (int64_t rest = i; rest < num_items; ++rest) {
    const auto item = static_cast<double>(items[rest]);
    each[static_cast<size_t>(rest - i)] += item * item;
  }
  return sum_of(each);
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep {

double square_sum(const float* items, int64_t num_items, SimdPath path) {
  return LOCKSTEP_OF_PATH(path, sum_squares)(items, num_items);
}

}  // namespace lockstep

#endif
