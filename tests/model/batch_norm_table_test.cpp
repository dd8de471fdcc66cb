// Shared work of batch normalisations: sums over samples and moving statistics of all at once.
#include "model/batch_norm.h"

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/counted_calls.h"

namespace lockstep::model {
namespace batch_norm_table_test {

/// Numbers of samples that one normalisation saw, by forward pass.
using Passes = std::vector<double>;

struct SeenCase {
  std::string name;
  std::vector<Passes> norms;
};

/// Channels of a normalisation: no two neighbours have as many.
int64_t num_channels(size_t norm) { return 3 + static_cast<int64_t>(norm % 2); }

/// [C] values that differ by normalisation, pass and channel.
at::Tensor values(size_t norm, size_t pass, double first, at::ScalarType dtype) {
  const at::Tensor places_C = at::arange(num_channels(norm), at::kDouble);
  const auto phase = static_cast<double>(10 * norm + pass);
  return (at::sin(places_C * 1.7 + phase) + first).to(dtype);
}

SeenBatch batch(size_t norm, size_t pass, double num_samples, at::ScalarType dtype) {
  return {num_samples, values(norm, pass, 0.1, dtype), values(norm, pass, 2.0, dtype)};
}

/// A table whose normalisations, `first` and those behind it, saw these passes.
struct Table {
  BatchNormTable norms;
  std::vector<BatchNormState*> states;

  Table(const std::vector<Passes>& seen, at::ScalarType dtype, size_t first = 0) {
    for (size_t n = 0; n < seen.size(); ++n) {
      states.push_back(&norms.add(num_channels(first + n)));
      for (size_t pass = 0; pass < seen[n].size(); ++pass)
        states.back()->seen.push_back(batch(first + n, pass, seen[n][pass], dtype));
    }
  }
};

/// A tenth of the way from `before` to the mean over samples, one number after the other.
at::Tensor moved_by_hand(double before, const Passes& passes,
                         const std::function<at::Tensor(size_t pass)>& values_of) {
  double num_samples = 0;
  at::Tensor sums_C = at::zeros_like(values_of(0), at::kDouble);
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    num_samples += passes[pass];
    sums_C = sums_C + values_of(pass).to(at::kDouble) * passes[pass];
  }
  return num_samples == 0 ? at::full_like(sums_C, before)
                          : before + (sums_C / num_samples - before) * 0.1;
}

class BatchNormTableSaw : public ::testing::TestWithParam<SeenCase> {};

TEST_P(BatchNormTableSaw, EachMovesTowardsTheMeanOfItsOwnSamples) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const std::vector<Passes>& passes = GetParam().norms;
    Table table(passes, dtype);
    table.norms.update(table.norms.take_seen());
    for (size_t n = 0; n < passes.size(); ++n) {
      const auto expect = [&](const at::Tensor& moving_C, double before, double first) {
        const at::Tensor by_hand_C = moved_by_hand(
            before, passes[n], [&](size_t pass) { return values(n, pass, first, dtype); });
        EXPECT_TRUE(at::allclose(moving_C.to(at::kDouble), by_hand_C, 1e-6, 1e-7)) << n;
      };
      const BatchNormState& state = *table.states[n];
      expect(state.moving_mean_C, 0, 0.1);
      expect(state.moving_variance_C, 1, 2.0);
      EXPECT_EQ(state.num_batches.item<int64_t>(), passes[n].empty() ? 0 : 1) << n;
      EXPECT_TRUE(state.seen.empty()) << n;
    }
  }
}

/// Sharing a kernel with other normalisations changes no bit.
TEST_P(BatchNormTableSaw, EachHasTheBitsThatItHasAlone) {
  const std::vector<Passes>& passes = GetParam().norms;
  Table table(passes, at::kDouble);
  const SeenStatistics seen = table.norms.take_seen();
  table.norms.update(seen);
  int64_t begin_K = 0;
  for (size_t n = 0; n < passes.size(); ++n) {
    Table alone({passes[n]}, at::kDouble, n);
    const SeenStatistics own = alone.norms.take_seen();
    EXPECT_EQ(seen.num_samples_N[n], own.num_samples_N[0]);
    EXPECT_TRUE(seen.sums_K.narrow(0, begin_K, own.sums_K.numel()).equal(own.sums_K)) << n;
    begin_K += own.sums_K.numel();
    alone.norms.update(own);
    EXPECT_TRUE(table.states[n]->moving_mean_C.equal(alone.states[0]->moving_mean_C)) << n;
    EXPECT_TRUE(table.states[n]->moving_variance_C.equal(alone.states[0]->moving_variance_C)) << n;
  }
  EXPECT_EQ(begin_K, seen.sums_K.numel());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BatchNormTableSaw,
    ::testing::Values(SeenCase{"EquallyMany", {{5}, {5}, {5}}},
                      SeenCase{"MicroBatches", {{3, 2, 2}, {3, 2, 2}, {3, 2, 2}}},
                      SeenCase{"SumsOfDifferentPasses", {{3, 2}, {2, 3}, {5}}},
                      SeenCase{"NothingInTheMiddle", {{4}, {}, {4}}},
                      SeenCase{"NothingAtTheEnds", {{}, {7}, {}}},
                      SeenCase{"DifferentNumbers", {{1}, {1}, {2}, {3}}},
                      SeenCase{"Nothing", {{}, {}}}, SeenCase{"OneNorm", {{6}}}),
    [](const auto& each) { return each.param.name; });

TEST(BatchNormTable, OfNoNormsSeesNothing) {
  BatchNormTable norms;
  const SeenStatistics seen = norms.take_seen();
  EXPECT_TRUE(seen.num_samples_N.empty());
  EXPECT_EQ(seen.sums_K.numel(), 0);
  norms.update(seen);
}

/// Number of calls in a step, by the number of normalisations.
int calls_of_a_step(size_t num_norms, const Passes& passes) {
  Table table(std::vector<Passes>(num_norms, passes), at::kFloat);
  const tests::CountedCalls calls;
  table.norms.update(table.norms.take_seen());
  EXPECT_EQ(calls.of("aten::_local_scalar_dense"), 0) << num_norms;  // on a GPU the host waits
  return calls.outer();
}

TEST(BatchNormTable, ManyNormsCostAsManyCallsAsOneAndTheHostReadsNothing) {
  for (const Passes& passes : {Passes{5}, Passes{3, 2}, Passes{}}) {
    const int calls = calls_of_a_step(1, passes);
    EXPECT_EQ(calls_of_a_step(50, passes), calls);
    EXPECT_LT(calls, 20);
  }
}

}  // namespace batch_norm_table_test
}  // namespace lockstep::model
