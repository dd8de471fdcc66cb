#include "dist/sync_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::dist {
namespace sync_options_test {

using ::testing::HasSubstr;
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

}  // namespace sync_options_test
}  // namespace lockstep::dist
