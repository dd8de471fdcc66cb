#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/cpu/p2p_channel.h"
#include "dist/cpu/peer.h"

namespace lockstep::dist::cpu {

/// Assignment of nodes of the sum tree (dist/tensor_math.h) to the members of an exchange.
/// Each member contributes the sums over one or more nodes; together they cover all ranks.
struct TreeParts {
  std::vector<int> first_ranks;  ///< first rank of each part, in order, then the number of ranks
  std::vector<int> owners;       ///< member that contributes each part
  /// Returns all parts of one member, in order.
  std::vector<int> parts_of(int member) const;
  /// True if each of M members contributes one part, in order, and the parts are added along the
  /// tree of M ranks.
  bool are_like_ranks() const;

  /// Returns the parts of an exchange in which every rank is a member and contributes its own
  /// values.
  static TreeParts of_ranks(int num_ranks);
  /// Returns the parts of an exchange between hosts. Rank r runs on host hosts_N[r], numbered from
  /// 0. Each host is a member and contributes the largest nodes of the tree that it contains.
  static TreeParts of_hosts(const std::vector<int>& hosts_N);
};

/// All-reduce over messages. Member g owns piece g of each chunk. It receives that piece of every
/// part, adds them along the tree, and sends the sum to all others.
///
/// A chunk passes start_scatter, finish_scatter, start_gather, finish_gather, or only one of these
/// halves. Up to kLanes chunks may be in progress, each in a separate lane, so that both directions
/// of a link stay busy.
class ChunkedAllReduce {
 public:
  static constexpr int kLanes = 3;

  ChunkedAllReduce(P2pChannel& channel, TreeParts parts);

  using Format = SumFormat;

  /// Starts the exchange of pieces. sources: this member's parts, num_items of Format::in each.
  void start_scatter(int lane, std::span<const std::byte* const> sources, int64_t num_items,
                     const Format& format);
  /// Writes the own piece of the sum to its position in `out`, num_items of Format::out.
  void finish_scatter(int lane, std::byte* out);
  /// Sends the piece that finish_scatter() wrote to all others.
  void start_gather(int lane);
  /// Starts a gather without a scatter. `out` has num_items of Format::out and contains the own
  /// piece.
  void start_gather(int lane, std::byte* out, int64_t num_items, const Format& format);
  void finish_gather(int lane);

 private:
  struct Lane {
    Format format{};
    int64_t num_items = 0;
    std::vector<const std::byte*> own_sources;
    std::vector<std::byte> received;
    std::byte* out = nullptr;
    P2pChannel::Batch batch;
  };

  int64_t piece_begin(const Lane& lane, int member) const;  ///< items

  P2pChannel& channel_;
  TreeParts parts_;
  std::vector<int> ranks_before_;  ///< by member: number of ranks before it; last: all ranks
  std::array<Lane, kLanes> lanes_;
  std::vector<const std::byte*> inputs_;  ///< by part
};

}  // namespace lockstep::dist::cpu
