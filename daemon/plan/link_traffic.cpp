#include "daemon/plan/link_traffic.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "dist/reduce_in_rank_order.h"

namespace lockstep::daemon {
namespace {

int log2_of(int power_of_two) { return std::countr_zero(static_cast<unsigned>(power_of_two)); }

/// How many sums each host brings: the nodes of the tree under ranks [begin, end) that lie on one
/// host each.
void count_sums(int begin, int end, int ranks_per_host, std::vector<int>* sums_H) {
  const int host = begin / ranks_per_host;
  if (host == (end - 1) / ranks_per_host) {
    ++(*sums_H)[static_cast<size_t>(host)];
    return;
  }
  const int middle = begin + dist::left_ranks(end - begin);
  count_sums(begin, middle, ranks_per_host, sums_H);
  count_sums(middle, end, ranks_per_host, sums_H);
}

/// The turns of dist/mpi/p2p/tree_exchange.h, each with what every host sends and receives.
class TreeTurns {
 public:
  TreeTurns(int hosts, int members_per_host, const TravelWidths& widths)
      : num_hosts_(hosts), members_per_host_(members_per_host), widths_(widths) {
    const int num = hosts * members_per_host;
    for (int begin = 0; begin < num; begin += blocks_.back().size)
      blocks_.push_back(
          {begin, static_cast<int>(std::bit_floor(static_cast<unsigned>(num - begin)))});
    for (const Block& block : blocks_) halve(block);
    spread(fold());
  }

  LinkTraffic traffic() const {
    LinkTraffic all;
    std::vector<double> sent_H(static_cast<size_t>(num_hosts_));
    for (const std::vector<Load>& turn : turns_) {
      double busiest = 0;
      for (size_t host = 0; host < turn.size(); ++host) {
        sent_H[host] += turn[host].sent;
        busiest = std::max({busiest, turn[host].sent, turn[host].received});
      }
      all.awaited += busiest;
      all.turns += busiest > 0 ? 1 : 0;
    }
    all.sent = *std::max_element(sent_H.begin(), sent_H.end());
    return all;
  }

 private:
  /// Members begin to begin + size, size a power of two.
  struct Block {
    int begin, size;
  };
  struct Load {
    double sent = 0, received = 0;
  };

  void carry(int turn, int from, int to, double share) {
    const auto from_host = static_cast<size_t>(from / members_per_host_);
    const auto to_host = static_cast<size_t>(to / members_per_host_);
    if (from_host == to_host) return;
    while (turns_.size() <= static_cast<size_t>(turn))
      turns_.emplace_back(static_cast<size_t>(num_hosts_));
    turns_[static_cast<size_t>(turn)][from_host].sent += share;
    turns_[static_cast<size_t>(turn)][to_host].received += share;
  }

  void halve(const Block& block) {
    for (int turn = 0, bit = 1; bit < block.size; ++turn, bit *= 2)
      for (int local = 0; local < block.size; ++local)
        carry(turn, block.begin + local, block.begin + (local ^ bit), widths_.sums / (2 * bit));
  }

  /// Between a block and the larger one before it, `turn` by turn: each member of the smaller one
  /// has several there.
  void pass(int turn, size_t smaller, bool is_forth, double width) {
    const Block &block = blocks_[smaller], &before = blocks_[smaller - 1];
    for (int i = 0; i < before.size; ++i) {
      const int here = block.begin + i % block.size, there = before.begin + i;
      carry(turn, is_forth ? there : here, is_forth ? here : there, width / before.size);
    }
  }

  /// Returns the turn after the last one.
  int fold() {
    int ready = log2_of(blocks_.back().size);
    for (size_t i = blocks_.size() - 1; i > 0; --i) {
      const int turn = std::max(ready, log2_of(blocks_[i - 1].size));
      pass(turn, i, /*is_forth=*/false, widths_.sums);
      ready = turn + 1;
    }
    return ready;
  }

  /// A block gives its results on while its members exchange theirs.
  void spread(int first_turn) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      int turn = first_turn + static_cast<int>(i);
      if (i > 0) pass(turn - 1, i, /*is_forth=*/true, widths_.results);
      for (int bit = block.size / 2; bit > 0; ++turn, bit /= 2)
        for (int local = 0; local < block.size; ++local)
          carry(turn, block.begin + local, block.begin + (local ^ bit),
                widths_.results / (2 * bit));
    }
  }

  int num_hosts_, members_per_host_;
  TravelWidths widths_;
  std::vector<Block> blocks_;
  std::vector<std::vector<Load>> turns_;  ///< by turn and host
};

}  // namespace

LinkTraffic direct_between_ranks(int hosts, int ranks_per_host, const TravelWidths& widths) {
  const double away = static_cast<double>(ranks_per_host) * (hosts - 1) / hosts;
  const double sent = (widths.sums + widths.results) * away;
  return {.sent = sent, .awaited = sent, .turns = 2};
}

LinkTraffic direct_between_hosts(int hosts, int ranks_per_host, const TravelWidths& widths) {
  std::vector<int> sums_H(static_cast<size_t>(hosts));
  count_sums(0, hosts * ranks_per_host, ranks_per_host, &sums_H);
  double all_sums = 0;
  for (const int sums : sums_H) all_sums += sums;
  LinkTraffic traffic{.turns = 2};
  for (const int sums : sums_H) {
    const double results = widths.results * (hosts - 1) / hosts;
    const double sent = widths.sums * sums * (hosts - 1) / hosts + results;
    const double received = widths.sums * (all_sums - sums) / hosts + results;
    traffic.sent = std::max(traffic.sent, sent);
    traffic.awaited = std::max({traffic.awaited, sent, received});
  }
  return traffic;
}

LinkTraffic along_tree(int hosts, int members_per_host, const TravelWidths& widths) {
  return TreeTurns(hosts, members_per_host, widths).traffic();
}

}  // namespace lockstep::daemon
