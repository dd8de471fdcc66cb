#include "daemon/plan/scale_model.h"

#include <gtest/gtest.h>

namespace lockstep::daemon {
namespace scale_model_test {

/// 1514 bytes of frames carry 1448 of data: a link of 1514 MB/s gives 1448 MB/s of them.
ScaleHost host_of(int ranks_per_host) {
  return {.ranks_per_host = ranks_per_host,
          .link_bytes_s = 1514e6,
          .latency_s = 1e-3,
          .memory_bytes_s = 10e9,
          .memory_bytes = 8e9,
          .disk_bytes_s = 100e6};
}

/// 1 s before gradients, 1 s of backward, 0.4 s of update, 0.1 s of others, at any batch; two
/// buckets.
ScaleJob steady_job(int64_t bucket_bytes) {
  const ComputeCost cost{1, 1, 0.4, 0.1};
  ScaleJob job;
  job.small = {1, cost};
  job.large = {32, cost};
  job.bucket_bytes = {bucket_bytes, bucket_bytes};
  job.rank_memory_bytes = 1e9;
  job.save_bytes = 500e6;
  return job;
}

Exchange exchange_of(int ranks, int ranks_per_host, bool shards_optimizer = false,
                     double item_bytes = 4, bool has_window = true) {
  ScaleJob job;
  job.shards_optimizer = shards_optimizer;
  job.has_window = has_window;
  job.item_bytes = item_bytes;
  return daemon::exchange_of(job, ranks, ranks_per_host);
}

TEST(ScaleModel, RanksExchangeAsInARun) {
  EXPECT_EQ(exchange_of(1, 1).name, "alone");
  EXPECT_EQ(exchange_of(4, 4).name, "window");
  EXPECT_EQ(exchange_of(4, 4, true).name, "window") << "pieces go through it, too";
  EXPECT_EQ(exchange_of(16, 1).name, "direct");
  EXPECT_EQ(exchange_of(17, 1).name, "tree");
  EXPECT_EQ(exchange_of(64, 4).name, "window + direct");
  EXPECT_EQ(exchange_of(68, 4).name, "window + tree");
  EXPECT_EQ(exchange_of(51, 3).name, "window + direct") << "3 ranks are no node of the tree";
  EXPECT_EQ(exchange_of(64, 4, true).name, "window + direct");
  EXPECT_EQ(exchange_of(68, 4, true).name, "tree") << "leaders exchange no pieces along it";
  EXPECT_EQ(exchange_of(51, 3, true).name, "window + direct");
  EXPECT_EQ(exchange_of(2, 2, false, 4, false).name, "messages");
  EXPECT_EQ(exchange_of(16, 4, false, 4, false).name, "direct");
  EXPECT_EQ(exchange_of(20, 4, false, 4, false).name, "tree");
}

/// A host adds 16-bit gradients up in float32; a divided optimizer gathers weights in float32.
TEST(ScaleModel, SumsOf16BitsAreTwiceAsWide) {
  EXPECT_DOUBLE_EQ(exchange_of(2, 1, false, 2).link.sent, 1);         // bf16 there, bf16 back
  EXPECT_DOUBLE_EQ(exchange_of(4, 2, false, 2).link.sent, 1.5);       // float32 there, bf16 back
  EXPECT_DOUBLE_EQ(exchange_of(2, 1, true, 2).link.sent, 1.5);        // bf16 there, float32 back
  EXPECT_DOUBLE_EQ(exchange_of(32, 1, false, 2).link.sent, 2.90625);  // 31/32 of both
}

TEST(ScaleModel, ExchangeIsWireAndTurns) {
  // 1448 MB on 4 hosts: 2172 MB to send, 1.5 s; two turns of 1 ms.
  EXPECT_NEAR(exchange_s(1448e6, exchange_of(4, 1), host_of(1)), 1.502, 1e-9);
  // 32 hosts along the tree: 2805.5 MB, 1.9375 s; 2 log2 32 = 10 turns.
  EXPECT_NEAR(exchange_s(1448e6, exchange_of(32, 1), host_of(1)), 1.9475, 1e-9);
  // 2 ranks of one host: 2 x 1 GB x 2 at 10 GB/s.
  EXPECT_NEAR(exchange_s(1e9, exchange_of(2, 2), host_of(2)), 0.4, 1e-9);
  // Leaders along the tree take 1 MiB after 1 MiB: 3 times 10 turns.
  EXPECT_NEAR(exchange_s(3 << 20, exchange_of(64, 2), host_of(2)),
              0.03 + 1.9375 * 3 * 1.048576 / 1448, 1e-9);
}

TEST(ScaleModel, BucketsTravelBehindBackward) {
  // Each bucket 724 MB: on 2 hosts 0.5 s and 2 ms; ready at 1.5 s and 2 s; arrived at 2.002, 2.504.
  // 1 ms for the step's numbers.
  const std::vector<ScaleRow> rows = scale_rows(steady_job(724'000'000), host_of(1), 2);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NEAR(rows[0].step_s, 2.5, 1e-9);
  EXPECT_NEAR(rows[1].waited_s, 0.505, 1e-9);
  EXPECT_NEAR(rows[1].step_s, 3.005, 1e-9);
  EXPECT_NEAR(rows[1].efficiency, 2.5 / 3.005, 1e-9);
  EXPECT_NEAR(rows[1].save_s, 5, 1e-9);
}

TEST(ScaleModel, NothingOfAWindowIsBehindBackward) {
  const std::vector<ScaleRow> rows = scale_rows(steady_job(1'000'000'000), host_of(2), 2);
  EXPECT_NEAR(rows[1].exchange_s, 0.8, 1e-9);
  EXPECT_NEAR(rows[1].waited_s, 0.8, 1e-9);
}

TEST(ScaleModel, PrunedGradientsSendLess) {
  ScaleJob job = steady_job(724'000'000);
  job.kept_share = 0.1;
  EXPECT_NEAR(scale_rows(job, host_of(1), 2)[1].waited_s, 0.053, 1e-9);
}

/// Three gradients are read and one sum is written, after backward; each updates a third.
TEST(ScaleModel, OneCopyOfTheWeightsOnOneHost) {
  ScaleJob job = steady_job(1'000'000'000);
  job.shares_weights = true;
  job.weight_bytes = 2e8;
  job.slot_bytes = 4e8;
  const std::vector<ScaleRow> rows = scale_rows(job, host_of(3), 6);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].way, "alone");
  EXPECT_NEAR(rows[0].host_memory_bytes, 1e9, 1);
  EXPECT_EQ(rows[1].way, "one copy");
  EXPECT_NEAR(rows[1].exchange_s, 2 * 3 * 1e9 / 10e9, 1e-9);
  EXPECT_NEAR(rows[1].waited_s, 0.6, 1e-9);
  EXPECT_NEAR(rows[1].compute_s, 2.1 + 0.4 / 2, 1e-9);
  EXPECT_NEAR(rows[1].host_memory_bytes, 2 * 4e8 + 6e8, 1);
  EXPECT_EQ(rows[2].way, "window + direct") << "hosts have no memory in common";
  EXPECT_NEAR(rows[2].host_memory_bytes, 3e9, 1);
  EXPECT_NEAR(rows[2].compute_s, 2.5, 1e-9);
}

TEST(ScaleModel, ADividedOptimizerKeepsAndUpdatesItsPart) {
  ScaleJob job = steady_job(1000);
  job.shards_optimizer = true;
  job.weight_bytes = 2e8;
  job.slot_bytes = 4e8;
  const std::vector<ScaleRow> rows = scale_rows(job, host_of(2), 4);
  EXPECT_NEAR(rows[2].host_memory_bytes, 2 * (6e8 + 1e8), 1);
  EXPECT_NEAR(rows[2].compute_s, 2.1 + 0.1, 1e-9);
}

/// As in BucketsTravelBehindBackward, but the second halves of both buckets, 0.251 s each, come
/// after all gradients: these arrive at 1.751 and 2.251.
TEST(ScaleModel, ADividedOptimizerGathersWeightsAtTheEnd) {
  ScaleJob job = steady_job(724'000'000);
  job.shards_optimizer = true;
  EXPECT_NEAR(scale_rows(job, host_of(1), 2)[1].waited_s, 0.251 + 0.002 + 0.502, 1e-9)
      << "and 2 ms for the numbers and the verdict";
  EXPECT_DOUBLE_EQ(exchange_of(2, 1, true, 2).gathered_share, 2.0 / 3)
      << "bf16 there, float32 back";
}

TEST(ScaleModel, OneCopyIsReadWholeWhereGradientsArePruned) {
  ScaleJob job = steady_job(1'000'000'000);
  job.shares_weights = true;
  job.kept_share = 0.1;
  EXPECT_NEAR(scale_rows(job, host_of(2), 2)[1].exchange_s, 2 * 3 * 1e9 / 10e9, 1e-9);
}

TEST(ScaleModel, SizesFillHosts) {
  std::vector<int> ranks;
  for (const ScaleRow& row : scale_rows(steady_job(1000), host_of(3), 12))
    ranks.push_back(row.ranks);
  EXPECT_EQ(ranks, (std::vector{1, 2, 12}));
}

TEST(ScaleModel, NamesWhatStopsFirst) {
  const auto limit = [](const ScaleJob& job, const ScaleHost& host, int ranks) {
    const std::vector<ScaleRow> rows = scale_rows(job, host, ranks);
    const ScaleRow* first = first_limit(rows);
    return first == nullptr ? std::string("none") : first->limit;
  };
  EXPECT_EQ(limit(steady_job(1000), host_of(1), 8), "none");
  EXPECT_EQ(limit(steady_job(3'000'000'000), host_of(1), 8), "wire");
  EXPECT_EQ(limit(steady_job(1000), host_of(16), 16), "memory of a host");
  ScaleHost far = host_of(1);
  far.latency_s = 2;
  EXPECT_EQ(limit(steady_job(1000), far, 2), "latency");
  ScaleJob often = steady_job(1000);
  often.save_every_steps = 1;  // 5 s of saving behind 2.5 s of training
  EXPECT_EQ(limit(often, host_of(1), 2), "shared disk at saves");
  ScaleJob few = steady_job(1000);
  few.global_batch = 32;  // the step takes 2.5 s at any batch: a second rank gains nothing
  EXPECT_EQ(limit(few, host_of(1), 2), "batch per rank");
}

}  // namespace scale_model_test
}  // namespace lockstep::daemon
