#include "dist/reduction_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::dist {
namespace reduction_modes_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Reading {
  SyncOptions options;
  Diagnostics faults;
  std::vector<FieldDoc> docs;
};

Reading read(const std::string& text) {
  Reading reading;
  const YamlDocument document = YamlDocument::parse("run.yaml", text, &reading.faults);
  reading.options = read_sync_options(
      ConfigReader(document.root()["sync"], "sync", document, &reading.faults, &reading.docs));
  return reading;
}

int64_t fitted(const BucketPlace& place, SyncOptions options = {}) {
  fit_bucket_bytes(place, &options);
  return options.bucket_bytes;
}

constexpr int64_t kMib = 1 << 20;

TEST(BucketBytes, SuitWhereGradientsTravel) {
  EXPECT_EQ(fitted({.on_gpu = true}), kGpuBucketBytes);
  EXPECT_EQ(fitted({.on_gpu = true, .num_hosts = 4, .num_ranks = 4}), kGpuBucketBytes);
  EXPECT_EQ(fitted({.num_ranks = 2}), 4 * kMib);
  EXPECT_EQ(fitted({.num_hosts = 2, .num_ranks = 2}), kMib);
  EXPECT_EQ(fitted({.num_hosts = 2, .num_ranks = 8}), kMib);
  EXPECT_EQ(fitted({.num_hosts = 5, .num_ranks = 5}), 5 * kMib / 2);
  EXPECT_EQ(fitted({.num_hosts = 8, .num_ranks = 8}), 4 * kMib);
  EXPECT_EQ(fitted({.num_hosts = 1000, .num_ranks = 8000}), 4 * kMib);
  EXPECT_EQ(fitted({.num_hosts = 2, .num_ranks = 8}, {.shared_window = false}), 4 * kMib)
      << "each rank sends its own share";
}

TEST(BucketBytes, StayLargeWhereSmallOnesGainNothing) {
  const BucketPlace two_hosts{.num_hosts = 2, .num_ranks = 2};
  BucketPlace pruned = two_hosts;
  pruned.prunes = true;
  EXPECT_EQ(fitted(pruned), 4 * kMib);
  EXPECT_EQ(fitted(pruned, {.sparse_allreduce = "never"}), kMib);
  EXPECT_EQ(fitted(two_hosts, {.overlap = "true"}), kMib);
  EXPECT_EQ(fitted(two_hosts, {.overlap = "false"}), 4 * kMib);
  EXPECT_EQ(fitted(two_hosts, {.shard_optimizer = true}), 4 * kMib);
  EXPECT_EQ(fitted(two_hosts, {.sync_replicas = false}), 4 * kMib);
}

TEST(BucketBytes, AreTheRunFilesWhereItNamesThem) {
  const SyncOptions named = read("sync: {bucket_bytes: 4194304}").options;
  EXPECT_EQ(fitted({.num_hosts = 2, .num_ranks = 2}, named), 4194304);
  EXPECT_EQ(fitted({.on_gpu = true}, named), 4194304);
}

TEST(SyncOptions, DefaultsStandWhereNothingIsSaid) {
  const Reading reading = read("sync: {}");
  EXPECT_TRUE(reading.faults.empty());
  EXPECT_EQ(reading.options.bucket_bytes, 4194304);
  EXPECT_EQ(reading.options.overlap, "auto");
  EXPECT_EQ(reading.options.sparse_allreduce, "auto");
  EXPECT_EQ(reading.options.comm_dtype, "fp32");
  EXPECT_FALSE(reading.options.shard_optimizer);
  EXPECT_TRUE(reading.options.sync_replicas);
  EXPECT_EQ(reading.options.sync_every, 8);
  EXPECT_EQ(reading.options.replica_check_every, 500);
}

TEST(SyncOptions, ReadsWhatThisVersionCanDo) {
  const Reading reading = read(
      "sync: {bucket_bytes: 1024, overlap: true, sparse_allreduce: always, comm_dtype: bf16, "
      "shard_optimizer: true, shared_window: false, timeout_s: 20, sync_replicas: false, "
      "sync_every: 3}");
  EXPECT_TRUE(reading.faults.empty()) << reading.faults.text();
  EXPECT_EQ(reading.options.bucket_bytes, 1024);
  EXPECT_EQ(reading.options.overlap, "true");
  EXPECT_EQ(reading.options.sparse_allreduce, "always");
  EXPECT_EQ(reading.options.comm_dtype, "bf16");
  EXPECT_FALSE(reading.options.sync_replicas);
  EXPECT_EQ(reading.options.sync_every, 3);
}

TEST(SyncOptions, EveryKeyIsDocumented) {
  const Reading reading = read("sync: {}");
  EXPECT_THAT(reading.docs, SizeIs(12));
  for (const FieldDoc& doc : reading.docs) EXPECT_GT(doc.help.size(), 10U) << doc.path;
}

TEST(SyncOptions, NonsenseIsAFault) {
  for (const std::string key :
       {"bucket_bytes: 0", "bucket_bytes: 1.5", "overlap: often", "sparse_allreduce: sometimes",
        "comm_dtype: fp8", "comm_dtype: fp16", "shard_optimizer: 2", "share_weights: sometimes",
        "sync_replicas: 2", "sync_replicas: false, sync_every: 0", "bucket_byte: 7"})
    EXPECT_THAT(read("sync: {" + key + "}").faults.list(), SizeIs(1)) << key;
}

/// "sync.a / sync.b" of each conflict.
std::vector<std::string> conflicts(const SyncOptions& options) {
  std::vector<std::string> pairs;
  for (const SyncConflict& conflict : conflicts_of(options))
    pairs.push_back(std::string(conflict.setting) + " / " + conflict.other);
  return pairs;
}

TEST(SyncConflicts, AreTheModesThatDoNotExist) {
  const std::string local = "sync.sync_replicas: false", shared = "sync.share_weights: on";
  EXPECT_THAT(conflicts({}), IsEmpty());
  EXPECT_THAT(conflicts({.comm_dtype = "bf16", .shard_optimizer = true}), IsEmpty());
  EXPECT_THAT(conflicts({.shard_optimizer = true, .sync_replicas = false}),
              ElementsAre(local + " / sync.shard_optimizer"));
  EXPECT_THAT(conflicts({.comm_dtype = "bf16", .sync_replicas = false}),
              ElementsAre(local + " / sync.comm_dtype"));
  EXPECT_THAT(conflicts({.comm_dtype = "bf16", .share_weights = "on", .shared_window = false}),
              ElementsAre(shared + " / sync.shared_window: false", shared + " / sync.comm_dtype"));
  EXPECT_THAT(conflicts({.share_weights = "on", .sync_replicas = false}),
              ElementsAre(shared + " / " + local));
}

TEST(SyncConflicts, GpusExchangeWholeGradientsAsTheyAre) {
  EXPECT_EQ(refusal_of_overlap_on_gpu({}), nullptr);
  EXPECT_EQ(refusal_of_packing_on_gpu({}), nullptr);
  EXPECT_EQ(refusal_of_overlap_on_gpu({.overlap = "true"}), nullptr);
  EXPECT_EQ(refusal_of_packing_on_gpu({.sparse_allreduce = "always"}), nullptr);
  EXPECT_NE(refusal_of_overlap_on_gpu({.overlap = "true", .comm_dtype = "bf16"}), nullptr);
  EXPECT_NE(refusal_of_overlap_on_gpu({.overlap = "true", .shard_optimizer = true}), nullptr);
  EXPECT_NE(refusal_of_packing_on_gpu({.overlap = "true", .sparse_allreduce = "always"}), nullptr);
  EXPECT_NE(refusal_of_packing_on_gpu({.sparse_allreduce = "always", .shard_optimizer = true}),
            nullptr);
}

/// Large float32 gradients in several buckets, on two ranks with CPUs.
constexpr ReductionFacts kTwoCpus{
    .world_size = 2, .are_cpu_floats = true, .num_buckets = 4, .dense_bytes = 4 * kMib};

TEST(ReductionModes, FollowTheTable) {
  const ReductionModes whole = reduction_modes({}, kTwoCpus);
  EXPECT_EQ(whole.kind, ReductionKind::kAllReduce);
  EXPECT_FALSE(whole.wire.has_value());
  EXPECT_TRUE(whole.may_overlap && whole.measures_overlap);
  EXPECT_TRUE(whole.packs_concurrently && whole.may_be_late);
  EXPECT_FALSE(whole.updates_early);

  const ReductionModes rounded = reduction_modes({.comm_dtype = "bf16"}, kTwoCpus);
  EXPECT_EQ(rounded.wire, at::kBFloat16);
  EXPECT_TRUE(rounded.may_overlap && rounded.packs_concurrently);
  EXPECT_FALSE(rounded.may_be_late);

  const ReductionModes sharded = reduction_modes({.shard_optimizer = true}, kTwoCpus);
  EXPECT_EQ(sharded.kind, ReductionKind::kReduceScatter);
  EXPECT_TRUE(sharded.may_overlap);
  EXPECT_FALSE(sharded.packs_concurrently || sharded.may_be_late);

  ReductionFacts facts = kTwoCpus;
  facts.are_shared = true;
  const ReductionModes shared = reduction_modes({.overlap = "true"}, facts);
  EXPECT_EQ(shared.kind, ReductionKind::kShared);
  EXPECT_FALSE(shared.may_overlap || shared.packs_concurrently || shared.may_be_late);

  facts = {.world_size = 2, .is_asynchronous = true, .num_buckets = 4, .dense_bytes = 4 * kMib};
  const ReductionModes on_gpu = reduction_modes({}, facts);
  EXPECT_TRUE(on_gpu.may_overlap && on_gpu.updates_early);
  EXPECT_FALSE(on_gpu.packs_concurrently || on_gpu.may_be_late);
  EXPECT_FALSE(reduction_modes({.comm_dtype = "bf16"}, facts).may_overlap);
  EXPECT_FALSE(reduction_modes({.shard_optimizer = true}, facts).may_overlap);
  facts.packs_on_gpu = true;
  EXPECT_FALSE(reduction_modes({.sparse_allreduce = "always"}, facts).may_overlap);
}

TEST(ReductionModes, OverlapNeedsSomethingToHide) {
  const auto may_overlap = [](const ReductionFacts& facts, const std::string& overlap) {
    return reduction_modes({.overlap = overlap}, facts).may_overlap;
  };
  ReductionFacts small = kTwoCpus, one_bucket = kTwoCpus, alone = kTwoCpus;
  small.dense_bytes = kMib - 1;
  one_bucket.num_buckets = 1;
  alone.world_size = 1;
  for (const ReductionFacts& facts : {small, one_bucket, alone}) {
    EXPECT_FALSE(may_overlap(facts, "auto"));
    EXPECT_TRUE(may_overlap(facts, "true"));
    EXPECT_FALSE(may_overlap(facts, "false"));
  }
  EXPECT_FALSE(may_overlap(kTwoCpus, "false"));
  EXPECT_FALSE(reduction_modes({.overlap = "true"}, kTwoCpus).measures_overlap);
}

TEST(ReductionModes, OneRankRoundsAndShardsNothing) {
  ReductionFacts alone = kTwoCpus;
  alone.world_size = 1;
  const ReductionModes modes =
      reduction_modes({.comm_dtype = "bf16", .shard_optimizer = true}, alone);
  EXPECT_FALSE(modes.wire.has_value());
  EXPECT_FALSE(modes.is_sharded() || modes.may_be_late);
}

}  // namespace reduction_modes_test
}  // namespace lockstep::dist
