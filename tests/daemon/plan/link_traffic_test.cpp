#include "daemon/plan/link_traffic.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dist/mpi/p2p/chunked_all_reduce.h"
#include "dist/mpi/p2p/p2p_communicator.h"
#include "tests/dist/mpi/counted_transport.h"

namespace lockstep::daemon {
namespace link_traffic_test {

using dist::mpi::ChunkedAllReduce;
using dist::mpi::P2pChannel;
using dist::mpi::P2pCommunicator;
using dist::mpi::TreeParts;
using tests::CountedTransport;

// Every number of members up to 64 divides it, but for rounding to whole items.
constexpr int64_t kItems = 1 << 16;

/// Bytes that each host sends to others.
class HostCounts {
 public:
  HostCounts(int hosts, int members_per_host)
      : members_per_host_(members_per_host), sent_H_(static_cast<size_t>(hosts)) {}

  void add(const CountedTransport& member) {
    const std::vector<int64_t>& bytes_to_N = member.bytes_to_N();
    const int host = member.rank() / members_per_host_;
    for (size_t to = 0; to < bytes_to_N.size(); ++to)
      if (static_cast<int>(to) / members_per_host_ != host)
        sent_H_[static_cast<size_t>(host)] += bytes_to_N[to];
  }
  double most() const {
    return static_cast<double>(*std::max_element(sent_H_.begin(), sent_H_.end()));
  }

 private:
  int members_per_host_;
  std::vector<int64_t> sent_H_;
};

/// What the code that runs in a real world sends in an all-reduce of all ranks, each counted alone.
double sent_by_ranks(int hosts, int ranks_per_host, int direct_ranks, at::ScalarType dtype) {
  HostCounts counts(hosts, ranks_per_host);
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    auto owned = std::make_unique<CountedTransport>(rank, hosts * ranks_per_host);
    const CountedTransport& transport = *owned;
    P2pCommunicator comm(std::move(owned), {.direct_ranks = direct_ranks}, {});
    comm.all_reduce(at::zeros({kItems}, dtype), dist::ReduceOp::kSum)->wait();
    counts.add(transport);
  }
  return counts.most() / static_cast<double>(kItems * c10::elementSize(dtype));
}

/// The same of the hosts' leaders, which bring their sums in float32. in_halves: a reduce_scatter
/// and an all_gather.
double sent_by_leaders(int hosts, int ranks_per_host, bool in_halves = false) {
  std::vector<int> hosts_N;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank)
    hosts_N.push_back(rank / ranks_per_host);
  const TreeParts parts = TreeParts::of_hosts(hosts_N);
  const std::vector<std::byte> values(kItems * 4);
  HostCounts counts(hosts, 1);
  for (int host = 0; host < hosts; ++host) {
    CountedTransport transport(host, hosts);
    P2pChannel channel(transport);
    ChunkedAllReduce exchange(channel, parts);
    std::vector<std::byte> out(kItems * 4);
    const std::vector<const std::byte*> sources(parts.parts_of(host).size(), values.data());
    channel.begin({.kind = dist::mpi::CallKind::kAllReduce});
    const ChunkedAllReduce::Format format{at::kFloat, at::kFloat,           4,
                                          4,          dist::ReduceOp::kSum, in_halves};
    exchange.start_scatter(0, sources, kItems, format);
    exchange.finish_scatter(0, out.data());
    if (in_halves)
      exchange.start_gather(0, out.data(), kItems, format);
    else
      exchange.start_gather(0);
    exchange.finish_gather(0);
    counts.add(transport);
  }
  return counts.most() / (4.0 * kItems);
}

struct Shape {
  int hosts, ranks_per_host;
};
constexpr Shape kShapes[] = {{2, 1}, {3, 1}, {5, 1}, {8, 1}, {2, 2}, {3, 2}, {2, 3},
                             {3, 3}, {5, 3}, {8, 3}, {4, 4}, {8, 4}, {7, 5}, {2, 8}};

TEST(LinkTraffic, RanksThatSendToEachOtherAreCounted) {
  for (const auto& [hosts, per_host] : kShapes)
    EXPECT_NEAR(direct_between_ranks(hosts, per_host, {}).sent,
                sent_by_ranks(hosts, per_host, 64, at::kFloat), 0.01)
        << hosts << " hosts of " << per_host;
}

TEST(LinkTraffic, HostsThatSendToEachOtherAreCounted) {
  for (const auto& [hosts, per_host] : kShapes)
    EXPECT_NEAR(direct_between_hosts(hosts, per_host, {}).sent, sent_by_leaders(hosts, per_host),
                0.01)
        << hosts << " hosts of " << per_host;
}

TEST(LinkTraffic, HalvesAreTheWhole) {
  for (const auto& [hosts, per_host] : kShapes)
    EXPECT_NEAR(direct_between_hosts(hosts, per_host, {}).sent,
                sent_by_leaders(hosts, per_host, /*in_halves=*/true), 0.01)
        << hosts << " hosts of " << per_host;
}

TEST(LinkTraffic, TheTreeIsCounted) {
  for (const auto& [hosts, per_host] : kShapes)
    EXPECT_NEAR(along_tree(hosts, per_host, {}).sent, sent_by_ranks(hosts, per_host, 1, at::kFloat),
                0.01)
        << hosts << " hosts of " << per_host;
  for (const int hosts : {13, 17, 24, 31})
    EXPECT_NEAR(along_tree(hosts, 1, {}).sent, sent_by_ranks(hosts, 1, 1, at::kFloat), 0.01)
        << hosts << " hosts";
}

TEST(LinkTraffic, TheTreeAddsSumsOf16BitsInFloat32) {
  for (const auto& [hosts, per_host] : kShapes)
    EXPECT_NEAR(along_tree(hosts, per_host, {.sums = 2}).sent,
                sent_by_ranks(hosts, per_host, 1, at::kBFloat16), 0.01)
        << hosts << " hosts of " << per_host;
}

/// By hand. 3 ranks a host: host 0 has ranks 0 and 1 as one node of the tree, and 2 alone.
TEST(LinkTraffic, AHostThatCutsNodesSendsSeveralSums) {
  EXPECT_DOUBLE_EQ(direct_between_hosts(2, 2, {}).sent, 1);    // 1/2 there, 1/2 back
  EXPECT_DOUBLE_EQ(direct_between_hosts(2, 3, {}).sent, 1.5);  // twice 1/2 there, 1/2 back
  EXPECT_DOUBLE_EQ(direct_between_hosts(3, 3, {}).sent, 2);    // twice 2/3 there, 2/3 back
}

/// By hand: 4 hosts and one more. The block of 4 halves (1/2, 1/4); the fifth gives all it has (1);
/// the results come to it (1) while the block doubles (1/4 beside it, then 1/2).
TEST(LinkTraffic, ABlockOfTheTreeWaitsForTheNext) {
  const LinkTraffic traffic = along_tree(5, 1, {});
  EXPECT_DOUBLE_EQ(traffic.awaited, 0.75 + 1 + 1 + 0.5);
  EXPECT_EQ(traffic.turns, 5);
  EXPECT_DOUBLE_EQ(along_tree(4, 1, {}).awaited, 1.5);
  EXPECT_EQ(along_tree(4, 1, {}).turns, 4);
}

/// What stays inside a host is no turn and no byte.
TEST(LinkTraffic, NeighboursOfAHostSendNothingOut) {
  const LinkTraffic traffic = along_tree(2, 4, {});
  EXPECT_DOUBLE_EQ(traffic.sent, 1);
  EXPECT_EQ(traffic.turns, 2);
  EXPECT_DOUBLE_EQ(along_tree(1, 4, {}).sent, 0);
}

}  // namespace link_traffic_test
}  // namespace lockstep::daemon
