#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/mpi/p2p/p2p_channel.h"
#include "dist/mpi/peer/collective_signature.h"

namespace lockstep::dist::mpi {

/// Which parts of the sum tree (dist/reduce_in_rank_order.h) the members of an exchange hold: each
/// brings the sums over one or more nodes of the tree, together they cover all ranks.
struct TreeParts {
  std::vector<int> first_ranks;  ///< of the parts in order, and the number of ranks at the end
  std::vector<int> owners;       ///< the member that brings the part
  /// All parts of one member, in order.
  std::vector<int> parts_of(int member) const;
  /// Whether each of M members brings one part, in order, and the parts are added along the tree of
  /// M ranks.
  bool are_like_ranks() const;

  /// Every rank is a member and brings itself.
  static TreeParts of_ranks(int num_ranks);
  /// Rank r runs on host hosts_N[r], numbered from 0; each host is a member and brings the largest
  /// nodes of the tree that it holds.
  static TreeParts of_hosts(const std::vector<int>& hosts_N);
};

/// All-reduce over messages: of each chunk, member g owns piece g; it gets that piece of every
/// part, adds them as the tree says, and sends the sum to all others.
///
/// A chunk goes start_scatter, finish_scatter, start_gather, finish_gather, or through one of these
/// halves alone; up to kLanes chunks may be under way, each in a lane of its own, so that both
/// directions of a link stay busy.
class ChunkedAllReduce {
 public:
  static constexpr int kLanes = 3;

  ChunkedAllReduce(P2pChannel& channel, TreeParts parts);

  /// In what the parts come, and what the sum leaves as.
  struct Format {
    at::ScalarType in, out;
    int64_t in_bytes, out_bytes;  ///< an item's
    ReduceOp op;
    bool by_ranks =
        false;  ///< pieces are in proportion to their members' ranks; else all are equal
  };

  /// sources: this member's parts, num_items of Format::in each.
  void start_scatter(int lane, std::span<const std::byte* const> sources, int64_t num_items,
                     const Format& format);
  /// Writes the own piece of the sum to its place in `out`, num_items of Format::out.
  void finish_scatter(int lane, std::byte* out);
  /// Of what finish_scatter() wrote.
  void start_gather(int lane);
  /// Without a scatter before: the own piece stands in `out`, num_items of Format::out.
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
  std::vector<int> ranks_before_;  ///< by member: ranks of those before it; and of all
  std::array<Lane, kLanes> lanes_;
  std::vector<const std::byte*> inputs_;  ///< by part
};

}  // namespace lockstep::dist::mpi
