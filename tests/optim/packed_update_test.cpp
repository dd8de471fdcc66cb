#include "optim/optimizer.h"

#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include "optim/mask_samples.h"

namespace lockstep::optim {
namespace packed_update_test {

constexpr double kRate = 0.0123, kBeta2 = 0.999, kEpsilon = 1e-3, kMomentum = 0.9;
constexpr int64_t kUpdate = 7;

/// Around the widths of vectors, words, blocks and chunks.
const std::vector<int64_t> kSizes{1, 15, 16, 17, 63, 64, 65, 2047, 2049, 65536, 131149};

struct AdamCase {
  int64_t num_elements = 0;
  double kept = 0.1, beta1 = 0.9, weight_decay = 0;

  OptimizerOptions options() const {
    return {.type = "adamw", .adam_beta1 = beta1, .adam_beta2 = kBeta2, .opt_epsilon = kEpsilon};
  }
  GroupRates rates() const { return {kRate, weight_decay}; }
};

/// A region with a mask, before an update: pruned elements are zeros.
struct Before {
  explicit Before(int64_t num_elements, double kept)
      : bits(random_bits(num_elements, kept, 3)),
        mask(bits, 0, num_elements),
        values(numbers(num_elements, 11)),
        grads(numbers(num_elements, 12)),
        m(numbers(num_elements, 13) * 0.1),
        v(numbers(num_elements, 14).square() * 0.1) {
    for (const at::Tensor& one : {values, grads, m, v}) mask.zero_pruned(one);
  }

  std::vector<uint8_t> bits;
  PackedMask mask;
  at::Tensor values, grads, m, v;
};

RegionData region_of(const at::Tensor& values, const at::Tensor& grads) {
  return {values.numel(), values.mutable_data_ptr<float>(), grads.mutable_data_ptr<float>()};
}

/// One update with the rule's own numbers, packed slots.
template <template <typename> class Rule>
void update(const PackedMask& kept, const at::Tensor& values, const at::Tensor& grads,
            const std::vector<at::Tensor>& slots_K, const OptimizerOptions& options,
            const GroupRates& rates, SimdPath path) {
  update_region(kept, region_of(values, grads), data_of(slots_K),
                rules::WeightDecay<float>(options, rates), Rule<float>(options, rates, kUpdate),
                path);
}

void update_adam(const AdamCase& one, const Before& before, const at::Tensor& values,
                 const at::Tensor& grads, const std::vector<at::Tensor>& slots_K, SimdPath path) {
  update<rules::Adam>(before.mask, values, grads, slots_K, one.options(), one.rates(), path);
}

/// ATen rounds the elements after the last whole vector in another way than the others. With enough
/// zeros appended, all elements are in whole vectors.
at::Tensor padded(const at::Tensor& dense_R) {
  at::Tensor all = at::zeros({dense_R.numel() + 64 - dense_R.numel() % 64});
  all.narrow(0, 0, dense_R.numel()).copy_(dense_R);
  return all;
}

template <typename Check>
void for_each_adam_case(const Check& check) {
  for (const int64_t num_elements : kSizes)
    for (const double kept : {0.0, 0.01, 0.1, 0.6, 1.0})
      for (const double weight_decay : {0.0, 0.01}) {
        SCOPED_TRACE(::testing::Message()
                     << num_elements << " elements, " << kept << " kept, decay " << weight_decay);
        check(AdamCase{num_elements, kept, 0.9, weight_decay});
      }
  check(AdamCase{1000, 0.3, 0.4, 0.01});  // more than half of the way: the other form of lerp()
}

void expect_atens_adam(const AdamCase& one, SimdPath path) {
  const Before before(one.num_elements, one.kept);
  const at::Tensor values = padded(before.values), m = padded(before.m), v = padded(before.v);
  at::_fused_adam_(values, padded(before.grads), m, v, at::TensorList(),
                   at::full({}, static_cast<double>(kUpdate)), kRate, one.beta1, kBeta2,
                   one.weight_decay, kEpsilon, false, false);

  const at::Tensor m_K = before.mask.pack(before.m), v_K = before.mask.pack(before.v);
  update_adam(one, before, before.values, before.grads, {m_K, v_K}, path);
  const auto region = [&](const at::Tensor& all) { return all.narrow(0, 0, one.num_elements); };
  expect_same(before.values, region(values));
  expect_same(m_K, before.mask.pack(region(m)));
  expect_same(v_K, before.mask.pack(region(v)));
}

TEST(PackedAdam, IsATensOnKeptElements) {
  for (const SimdPath path : simd_paths()) {
    SCOPED_TRACE(name_of(path));
    for_each_adam_case([&](const AdamCase& one) { expect_atens_adam(one, path); });
  }
}

void expect_atens_momentum(int64_t num_elements, double kept, double decay, bool nesterov,
                           SimdPath path) {
  const Before before(num_elements, kept);
  const at::Tensor values = padded(before.values), m = padded(before.m);
  at::_fused_sgd_(values, padded(before.grads), m, decay, kMomentum, kRate, 0.0, nesterov, false,
                  false);
  const at::Tensor m_K = before.mask.pack(before.m);
  update<rules::Momentum>(before.mask, before.values, before.grads, {m_K},
                          {.momentum = kMomentum, .nesterov = nesterov}, {kRate, decay}, path);
  expect_same(before.values, values.narrow(0, 0, num_elements));
  expect_same(m_K, before.mask.pack(m.narrow(0, 0, num_elements)));
}

TEST(PackedMomentum, IsATensOnKeptElements) {
  for (const SimdPath path : simd_paths())
    for (const int64_t num_elements : kSizes)
      for (const double kept : {0.0, 0.01, 0.1, 1.0})
        for (const double decay : {0.0, 0.01})
          for (const bool nesterov : {false, true}) {
            SCOPED_TRACE(::testing::Message() << name_of(path) << ", " << num_elements
                                              << " elements, " << kept << " kept");
            expect_atens_momentum(num_elements, kept, decay, nesterov, path);
          }
}

/// All paths round alike, whatever ATen does on this machine.
TEST(PackedAdam, PathsAndThreadsAgreeInEveryBit) {
  const AdamCase one{.num_elements = 200'077, .kept = 0.2, .weight_decay = 0.01};
  std::vector<at::Tensor> found;
  const int num_threads = at::get_num_threads();
  for (const SimdPath path : simd_paths())
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      const Before before(one.num_elements, one.kept);
      const at::Tensor m_K = before.mask.pack(before.m), v_K = before.mask.pack(before.v);
      update_adam(one, before, before.values, before.grads, {m_K, v_K}, path);
      found.push_back(before.values);
    }
  at::set_num_threads(num_threads);
  for (const at::Tensor& values : found) EXPECT_TRUE(at::equal(values, found.front()));
}

TEST(PackedAdam, LeavesPrunedValuesAsTheyAre) {
  for (const SimdPath path : simd_paths())
    for (const double kept : {0.01, 0.3}) {
      const Before before(300, kept);
      const at::Tensor values = at::full({300}, -2.5F);
      const at::Tensor grads = at::full({300}, 7.0F);  // of pruned elements too
      const at::Tensor m_K = before.mask.pack(before.m), v_K = before.mask.pack(before.v);
      update_adam({300}, before, values, grads, {m_K, v_K}, path);
      for (int64_t i = 0; i < 300; ++i)
        EXPECT_EQ(values[i].item<float>() == -2.5F, !is_kept(before.bits.data(), i)) << i;
    }
}

/// Gradients of pruned elements, NaN included, change no bit.
TEST(PackedAdam, ReadsKeptGradientsAlone) {
  for (const SimdPath path : simd_paths())
    for (const double kept : {0.01, 0.3}) {
      const Before clean(100'000, kept), dirty(100'000, kept);
      const at::Tensor spoiled = at::full_like(dirty.grads, std::nan(""));
      const at::Tensor grads = at::where(dirty.grads == 0, spoiled, dirty.grads);
      ASSERT_GT(grads.isnan().sum().item<int64_t>(), 60'000);
      for (const Before* one : {&clean, &dirty}) {
        const at::Tensor m_K = one->mask.pack(one->m), v_K = one->mask.pack(one->v);
        update_adam({100'000}, *one, one->values, one == &clean ? clean.grads : grads, {m_K, v_K},
                    path);
      }
      EXPECT_TRUE(at::equal(dirty.values, clean.values));
    }
}

TEST(PackedMask, IsCutOutAtAnyElement) {
  const std::vector<uint8_t> bits = random_bits(1000, 0.4, 5);
  const at::Tensor whole = numbers(1000, 6);
  for (const int64_t begin : {0, 1, 7, 8, 13, 64, 999})
    for (const int64_t num : {1, 8, 200, 1000}) {
      if (begin + num > 1000) continue;
      const PackedMask mask(bits, begin, num);
      const at::Tensor packed_K = mask.pack(whole.narrow(0, begin, num));
      const at::Tensor dense_R = at::full({num}, 9.0F);
      mask.unpack(packed_K, dense_R);
      int64_t num_kept = 0;
      for (int64_t i = 0; i < num; ++i) {
        const bool kept = is_kept(bits.data(), begin + i);
        num_kept += kept ? 1 : 0;
        EXPECT_EQ(dense_R[i].item<float>(), kept ? whole[begin + i].item<float>() : 0.0F);
      }
      EXPECT_EQ(packed_K.numel(), num_kept);
    }
}

}  // namespace packed_update_test
}  // namespace lockstep::optim
