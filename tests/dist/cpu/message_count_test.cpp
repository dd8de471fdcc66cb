// How many messages a step of a large world takes: counted for each rank by itself, with the code
// that runs in a real one.
#include <bit>
#include <cstdio>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dist/cpu/p2p_communicator.h"
#include "dist/reducer/step_stats.h"
#include "tests/dist/cpu/counted_transport.h"

namespace lockstep::dist::cpu {
namespace message_count_test {

/// A step's collectives on the communicator of gradients (docs/design/one_step.md).
struct Step {
  const char* name;
  int num_buckets;
  int64_t bucket_elements;
  bool shard;
};

void take(Communicator& comm, const Step& step) {
  const int64_t num = comm.world_size();
  for (int bucket = 0; bucket < step.num_buckets; ++bucket) {
    if (!step.shard) {
      comm.all_reduce(at::zeros({step.bucket_elements}), ReduceOp::kSum)->wait();
      continue;
    }
    const int64_t piece = (step.bucket_elements + num - 1) / num;
    const at::Tensor values = at::zeros({piece * num});
    comm.reduce_scatter(values.narrow(0, comm.rank() * piece, piece), values)->wait();
  }
  comm.all_reduce(at::zeros({4 + kNumVotes}, at::kDouble), ReduceOp::kSum)->wait();
  if (!step.shard) return;
  comm.all_reduce(at::zeros({1}, at::kLong), ReduceOp::kSum)->wait();  // the verdict
  for (int bucket = 0; bucket < step.num_buckets; ++bucket) {
    const int64_t piece = (step.bucket_elements + num - 1) / num;
    const at::Tensor values = at::zeros({piece * num});
    comm.all_gather(values, values.narrow(0, comm.rank() * piece, piece))->wait();
  }
}

struct WorldCounts {
  int64_t num_messages = 0, num_bytes = 0;
  tests::CountedTransport::Counts most;  ///< of one rank, each for itself
};

tests::CountedTransport::Counts count_rank(int rank, int num_ranks, const Step& step) {
  auto owned = std::make_unique<tests::CountedTransport>(rank, num_ranks);
  const tests::CountedTransport& transport = *owned;
  P2pCommunicator comm(std::move(owned), {}, {});
  take(comm, step);
  return transport.counts();
}

WorldCounts count(int num_ranks, const Step& step) {
  WorldCounts all;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto counts = count_rank(rank, num_ranks, step);
    all.num_messages += counts.num_messages;
    all.num_bytes += counts.num_bytes;
    all.most.num_messages = std::max(all.most.num_messages, counts.num_messages);
    all.most.num_bytes = std::max(all.most.num_bytes, counts.num_bytes);
    all.most.largest_bytes = std::max(all.most.largest_bytes, counts.largest_bytes);
  }
  return all;
}

int64_t num_collectives(const Step& step) {
  return step.num_buckets * (step.shard ? 2 : 1) + (step.shard ? 2 : 1);
}

/// Limit for one collective: log2 N notes of each rank, 2 log2 N messages of each rank, and two for
/// each rank between the blocks if N is not a power of two.
int64_t limit_of(int64_t num_ranks) {
  const auto log2 = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(num_ranks - 1)));
  return num_ranks * (3 * log2 + 4);
}

constexpr Step kSteps[] = {{"plain", 2, 5000, false}, {"sharded", 2, 5000, true}};

TEST(MessageCount, GrowsAsNLogN) {
  for (const Step& step : kSteps)
    for (const int num_ranks : {17, 64, 100, 257, 1000, 1024}) {
      const WorldCounts all = count(num_ranks, step);
      EXPECT_LE(all.num_messages, num_collectives(step) * limit_of(num_ranks))
          << step.name << ", " << num_ranks << " ranks";
    }
}

/// Values: at most three times what a step hands over, whatever the number of ranks; notes beside.
TEST(MessageCount, NoRankSendsMoreThanThriceItsValues) {
  for (const bool shard : {false, true})
    for (const int num_ranks : {17, 24, 257}) {
      const Step step{shard ? "sharded" : "plain", 1, 1 << 14, shard};
      const WorldCounts all = count(num_ranks, step);
      const int64_t values = step.bucket_elements * 4 * (step.shard ? 2 : 1);
      const int64_t small = num_collectives(step) * 4096;  // notes, numbers, filled-up pieces
      EXPECT_LE(all.most.num_bytes, 3 * values + small) << step.name << ", " << num_ranks;
    }
}

/// The most of some ranks of 1,024. Of a power of two all ranks send alike, but for what is too
/// small to be cut into so many pieces.
tests::CountedTransport::Counts most_of_1024(const Step& step) {
  tests::CountedTransport::Counts most;
  for (const int rank : {0, 1, 513, 1023}) {
    const auto one = count_rank(rank, 1024, step);
    most.num_messages = std::max(most.num_messages, one.num_messages);
    most.num_bytes = std::max(most.num_bytes, one.num_bytes);
    most.largest_bytes = std::max(most.largest_bytes, one.largest_bytes);
  }
  return most;
}

/// 10^10 float32 parameters in buckets of the default 4 MiB. All buckets are alike, so two are
/// enough to know what each further one adds.
TEST(MessageCount, OfTenBillionParametersOnAThousandRanksIsPrinted) {
  constexpr int64_t kRanks = 1024, kBucketElements = 1 << 20;
  constexpr int64_t kBuckets = (10'000'000'000 + kBucketElements - 1) / kBucketElements;
  for (const bool shard : {false, true}) {
    const char* name = shard ? "sharded" : "plain";
    const auto one = most_of_1024({name, 1, kBucketElements, shard});
    const auto two = most_of_1024({name, 2, kBucketElements, shard});
    const int64_t messages_a_bucket = two.num_messages - one.num_messages;
    const int64_t bytes_a_bucket = two.num_bytes - one.num_bytes;
    const int64_t num_messages = one.num_messages + (kBuckets - 1) * messages_a_bucket;
    const int64_t num_bytes = one.num_bytes + (kBuckets - 1) * bytes_a_bucket;
    std::printf(
        "%s step of 10^10 parameters on 1024 ranks, %lld buckets of 4 MiB: a rank sends %lld "
        "messages a bucket, of up to %lld KiB; %lld messages and %.1f GB a step; all ranks %lld "
        "messages\n",
        name, static_cast<long long>(kBuckets), static_cast<long long>(messages_a_bucket),
        static_cast<long long>(two.largest_bytes >> 10), static_cast<long long>(num_messages),
        static_cast<double>(num_bytes) / 1e9, static_cast<long long>(num_messages * kRanks));
    // Each collective: log2 N notes and up to 2 log2 N messages of values, longer ones in parts.
    EXPECT_LE(messages_a_bucket,
              (shard ? 2 : 1) * 3 * 10 + bytes_a_bucket / P2pChannel::kPartBytes);
    // Twice the bucket's bytes, in halves, quarters, ... and notes.
    EXPECT_LE(bytes_a_bucket, 2 * 4 * kBucketElements + 4096);
    EXPECT_LE(two.largest_bytes, P2pChannel::kPartBytes);
  }
}

}  // namespace message_count_test
}  // namespace lockstep::dist::cpu
