#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/buffer_callback.h"
#include "coord/recording_callback.h"

namespace lockstep::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::fault_of;

DataMap sample_of(double x) {
  DataMap sample;
  sample.put("x", at::full({2}, x, at::kDouble));
  return sample;
}

DataMap joined(const Buffer& buffer) { return buffer.joined(std::vector<DataMap>{buffer.state()}); }

TEST(Buffers, N43_a_list_keeps_all_and_a_ring_the_last) {
  ListBuffer list;
  RingBuffer ring(2);
  for (int i = 0; i < 5; ++i) list.add(sample_of(i)), ring.add(sample_of(i));
  EXPECT_TRUE(joined(list).tensor("x").select(1, 0).equal(at::arange(5, at::kDouble)));
  EXPECT_TRUE(joined(ring).tensor("x").select(1, 0).equal(at::arange(3, 5, at::kDouble)));
  list.clear();
  EXPECT_EQ(list.num_samples(), 0);
  EXPECT_TRUE(joined(list).empty());
}

TEST(Buffers, N43_samples_that_differ_are_refused) {
  ListBuffer list;
  list.add(sample_of(1));
  DataMap other;
  other.put("x", at::ones({3}));
  list.add(other);
  EXPECT_THAT(fault_of([&] { list.state(); }),
              HasSubstr("'x' of the samples that were collected cannot be joined"));
  StatsBuffer stats;
  stats.add(sample_of(1));
  EXPECT_THAT(fault_of([&] { stats.add(other); }), HasSubstr("has the shape [2] in one sample"));
  ListBuffer keys;
  keys.add(sample_of(1));
  DataMap more = sample_of(2);
  more.put("y", at::ones({1}));
  keys.add(more);
  EXPECT_THAT(fault_of([&] { keys.state(); }), HasSubstr("one is Float [1], number 1 is missing"));
}

TEST(Buffers, N44_mean_and_variance_over_ranks_are_those_of_one_rank) {
  const at::Tensor values = at::randn({37}, at::kDouble) * 3 + 1e6;  // sums of squares would cancel
  StatsBuffer whole, first, second, none;
  for (int64_t i = 0; i < 37; ++i) {
    whole.add(sample_of(values[i].item<double>()));
    (i < 10 ? first : second).add(sample_of(values[i].item<double>()));
  }
  const DataMap one = joined(whole);
  const DataMap ranks =
      whole.joined(std::vector<DataMap>{first.state(), none.state(), second.state()});
  for (const DataMap* const map : {&one, &ranks}) {
    const DataMap& stats = map->map("x");
    EXPECT_EQ(stats.tensor("count").item<int64_t>(), 37);
    const auto at0 = [&](const char* name) { return stats.tensor(name)[0].item<double>(); };
    EXPECT_NEAR(at0("mean"), values.mean().item<double>(), 1e-8);
    EXPECT_NEAR(at0("variance"), values.var(false).item<double>(), 1e-8);
    EXPECT_EQ(at0("minimum"), values.min().item<double>());
    EXPECT_EQ(at0("maximum"), values.max().item<double>());
  }
}

/// Gives the sum of all samples.
class Sum : public BufferCallback {
 public:
  using BufferCallback::BufferCallback;
  std::vector<std::string> generated_keys() const override { return {"sum"}; }

 protected:
  std::optional<DataMap> process_buffer(const DataMap& data) override {
    DataMap made;
    made.put("sum", data.tensor("x").sum());
    return made;
  }
};

DataMap batch_of(double x, bool evaluate) {
  DataMap batch;
  batch.put("x", at::full({3}, x));
  if (evaluate) batch.put("evaluate", at::full({}, true));
  return batch;
}

CallbacksHandler handler_of(bool gather, Services services, tests::Calls* calls) {
  auto callbacks =
      tests::recording({{.name = "after", .incoming = {"sum"}, .run_on = RunOn::kAll}}, calls);
  callbacks.push_back({"sum", std::make_unique<Sum>(BufferOptions{.keys = {"x"}, .gather = gather},
                                                    std::make_unique<ListBuffer>(), services)});
  return {std::move(callbacks), {"x", "_evaluate"}, {}};
}

TEST(BufferCallback, N39_N40_N41_N42_runs_and_is_freed_when_evaluate_is_set) {
  tests::Calls calls;
  CallbacksHandler handler = handler_of(false, {}, &calls);
  handler.on_iteration_end(batch_of(1, false));
  EXPECT_THAT(calls, ElementsAre());
  DataMap off = batch_of(1, true);
  off.put("evaluate", at::full({}, false));
  EXPECT_FALSE(handler.on_iteration_end(off).contains("sum"));
  EXPECT_EQ(handler.on_iteration_end(batch_of(2, true)).tensor("sum").item<float>(), 12);
  EXPECT_EQ(calls.size(), 1);
  EXPECT_EQ(handler.on_iteration_end(batch_of(4, true)).tensor("sum").item<float>(), 12);
}

TEST(BufferCallback, N42_gather_joins_ranks) {
  Services services;  // a second rank holds the same, a third nothing
  services.gather_over_ranks = [](const DataMap& own) {
    return std::vector<DataMap>{own, DataMap(), own};
  };
  CallbacksHandler handler = handler_of(true, services, nullptr);
  EXPECT_EQ(handler.on_iteration_end(batch_of(2, true)).tensor("sum").item<float>(), 12);
}

}  // namespace
}  // namespace lockstep::coord
