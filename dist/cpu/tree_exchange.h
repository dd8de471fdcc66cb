#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/cpu/p2p_channel.h"
#include "dist/cpu/peer.h"

namespace lockstep::dist::cpu {

/// Collectives of many ranks, with about 2 log2 N messages per rank instead of 2 N. Method:
/// recursive halving and doubling along the sum tree (dist/tensor_math.h), so with its
/// bits. If N is not a power of two, ranks form a row of blocks whose sizes are (13 = 8 + 4 + 1).
/// Each block halves separately, sends its sums to the larger block before it, and receives the
/// results from there.
///
/// Cost of S bytes: a rank of the first block sends at most 2 S, one of another block at most 3 S.
/// Messages over all ranks: at most 2 N log2 N + 2 N. Source: Thakur, Rabenseifner and Gropp,
/// Optimization of Collective Communication Operations in MPICH (2005), sections 4.4 and 4.5.
///
/// The caller has sent the channel's notes; this class sends none. Each call is done when it
/// returns.
class TreeExchange {
 public:
  explicit TreeExchange(P2pChannel& channel);

  using Format = SumFormat;

  /// All-reduces. `sums`: this rank's items in Format::in, overwritten. `out` may be the same
  /// memory if the types are equal.
  void all_reduce(std::byte* sums, std::byte* out, int64_t num_items, const Format& format);
  /// All-reduces items in Format::out, in place.
  void all_reduce_narrow(std::byte* values, int64_t num_items, const Format& format);
  /// Implements Communicator::reduce_scatter() of num_items in each of N pieces. `values` stays
  /// unchanged, except for a piece that `out` shares.
  void reduce_scatter(const std::byte* values, std::byte* out, int64_t num_items,
                      const Format& format);
  /// Implements Communicator::all_gather() of pieces of num_items.
  void all_gather(std::byte* out, const std::byte* values, int64_t num_items, int64_t item_bytes);
  void broadcast(std::byte* values, int64_t num_bytes, int root);

 private:
  /// Ranks begin to begin + size; size is a power of two. All blocks together contain all ranks.
  struct Block {
    int begin, size;
  };
  /// Range of places. Items are cut into as many places as the first block has ranks.
  struct Range {
    int first, last;
  };

  Range held(int local, int size) const;
  int64_t begin_of(int place) const { return begins_[static_cast<size_t>(place)]; }
  int64_t num_items_of(const Range& range) const {
    return begin_of(range.last) - begin_of(range.first);
  }
  bool is_first_block() const { return block_ == 0; }

  void cut_evenly(int64_t num_items);
  /// Cuts pieces into places. Place p contains piece slot_of(p), and the one a first block's size
  /// after it, if that exists.
  void cut_by_pieces(int64_t piece_items);
  int slot_of(int place) const;

  void send(const std::byte* items, const Range& range, int64_t item_bytes, int to);
  void receive(std::byte* items, const Range& range, int64_t item_bytes, int from);
  void receive_to_scratch(const Range& range, int64_t item_bytes, int from);
  void combine(std::byte* items, const Range& range, const Format& format, bool received_is_left);

  void halve(std::byte* sums, const Format& format);
  void fold(std::byte* sums, const Format& format);
  void spread(std::byte* items, int64_t item_bytes);

  P2pChannel& channel_;
  std::vector<Block> blocks_;
  size_t block_ = 0;             ///< the block of this rank
  int local_ = 0;                ///< position of this rank in it
  std::vector<int64_t> begins_;  ///< first item of each place, then the end
  // Members, so that a steady step allocates nothing.
  P2pChannel::Batch batch_;
  std::vector<std::byte> scratch_, sums_;
};

}  // namespace lockstep::dist::cpu
