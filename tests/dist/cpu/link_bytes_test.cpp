// Bytes that hosts send to each other in an all-reduce: counted for each member by itself, with the
// code that runs in a real world.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dist/cpu/chunked_all_reduce.h"
#include "dist/cpu/p2p_communicator.h"
#include "tests/dist/cpu/counted_transport.h"

namespace lockstep::dist::cpu {
namespace link_bytes_test {

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

/// Bytes that the busiest host sends in an all-reduce of all ranks, over those of the tensor.
double sent_by_ranks(int hosts, int ranks_per_host, int direct_ranks, at::ScalarType dtype) {
  HostCounts counts(hosts, ranks_per_host);
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    auto owned = std::make_unique<CountedTransport>(rank, hosts * ranks_per_host);
    const CountedTransport& transport = *owned;
    P2pCommunicator comm(std::move(owned), {.direct_ranks = direct_ranks}, {});
    comm.all_reduce(at::zeros({kItems}, dtype), ReduceOp::kSum)->wait();
    counts.add(transport);
  }
  return counts.most() / static_cast<double>(kItems * c10::elementSize(dtype));
}

/// The same for an all-reduce of the hosts' leaders, whose sums are float32. in_halves: as a
/// reduce_scatter and an all_gather.
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
    channel.begin({.kind = CallKind::kAllReduce});
    const ChunkedAllReduce::Format format{at::kFloat, at::kFloat, 4, 4, ReduceOp::kSum, in_halves};
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

using Shapes = std::vector<std::pair<int, int>>;  ///< hosts, ranks of each

/// Share of one host of H, there and back, computed by hand.
double there_and_back(int hosts) { return 2.0 * (hosts - 1) / hosts; }

TEST(LinkBytes, RanksThatSendToEachOther) {
  for (const auto& [hosts, per_host] : Shapes{{2, 1}, {3, 1}, {8, 1}, {3, 2}, {5, 3}, {4, 4}})
    EXPECT_NEAR(sent_by_ranks(hosts, per_host, 64, at::kFloat), per_host * there_and_back(hosts),
                0.01)
        << hosts << " hosts of " << per_host;
}

/// Expected values by hand. 3 ranks a host: host 0 has ranks 0 and 1 as one node of the tree, and 2
/// alone, so it sends two sums.
TEST(LinkBytes, HostsThatSendToEachOther) {
  for (const bool in_halves : {false, true}) {
    for (const auto& [hosts, per_host] : Shapes{{2, 1}, {3, 2}, {8, 4}, {2, 8}})
      EXPECT_NEAR(sent_by_leaders(hosts, per_host, in_halves), there_and_back(hosts), 0.01)
          << hosts << " hosts of " << per_host;
    EXPECT_NEAR(sent_by_leaders(2, 3, in_halves), 2 * 0.5 + 0.5, 0.01);
    EXPECT_NEAR(sent_by_leaders(3, 3, in_halves), 2 * 2.0 / 3 + 2.0 / 3, 0.01);
  }
}

/// Expected values by hand, for 4 hosts and one more. The block of 4 halves and doubles (3/4 each),
/// its members send the results to the fifth (1/4 each). The fifth sends all that it has (1).
TEST(LinkBytes, RanksAlongTheTree) {
  for (const auto& [hosts, per_host] : Shapes{{2, 1}, {4, 1}, {8, 1}, {2, 4}, {8, 4}})
    EXPECT_NEAR(sent_by_ranks(hosts, per_host, 1, at::kFloat), there_and_back(hosts), 0.01)
        << hosts << " hosts of " << per_host;
  EXPECT_NEAR(sent_by_ranks(5, 1, 1, at::kFloat), 0.75 + 0.25 + 0.75, 0.01);
}

/// Half as wide as the sums: 3 times (1 - 1/H) of the tensor's bytes in place of 2 times.
TEST(LinkBytes, TheTreeAddsSumsOf16BitsInFloat32) {
  for (const int hosts : {2, 4, 8})
    EXPECT_NEAR(sent_by_ranks(hosts, 1, 1, at::kBFloat16), 1.5 * there_and_back(hosts), 0.01)
        << hosts << " hosts";
}

}  // namespace link_bytes_test
}  // namespace lockstep::dist::cpu
