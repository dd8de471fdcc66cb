// Three phases: halve() reduces within each block, fold() adds the blocks' sums into the first
// block, spread() sends results back. Ranges say which items a rank holds in each phase.
#include "dist/cpu/tree_exchange.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "dist/tensor_math.h"

namespace lockstep::dist::cpu {
namespace {

constexpr int kTreeTag = 5;
// Bytes that travel together: bounds the scratch memory.
constexpr int64_t kTreeChunkBytes = 32 << 20;

std::byte* first_bytes(std::vector<std::byte>* scratch, int64_t num_bytes) {
  if (static_cast<int64_t>(scratch->size()) < num_bytes)
    scratch->resize(static_cast<size_t>(num_bytes));
  return scratch->data();
}

/// Converts between types; one of them may be the other's accumulator.
void convert(const std::byte* from, std::byte* to, int64_t num_items, at::ScalarType from_dtype,
             at::ScalarType to_dtype) {
  const std::array<int, 2> one_rank{0, 1};
  if (num_items > 0)
    reduce_parts({{&from, 1}, one_rank}, to, num_items, from_dtype, to_dtype, ReduceOp::kSum);
}

}  // namespace

TreeExchange::TreeExchange(P2pChannel& channel) : channel_(channel) {
  const int num = channel_.num_ranks();
  for (int begin = 0; begin < num; begin += blocks_.back().size)
    blocks_.push_back(
        {begin, static_cast<int>(std::bit_floor(static_cast<unsigned>(num - begin)))});
  // Blocks by descending size, the binary digits of the number of ranks.
  while (channel_.rank() >= blocks_[block_].begin + blocks_[block_].size) ++block_;
  local_ = channel_.rank() - blocks_[block_].begin;
}

/// Returns the range that rank `local` of a block holds after the halving: each bit, from the
/// lowest on, selects one half of the rest.
TreeExchange::Range TreeExchange::held(int local, int size) const {
  Range range{0, blocks_.front().size};
  for (int bit = 1; bit < size; bit *= 2) {
    const int middle = (range.first + range.last) / 2;
    ((local & bit) == 0 ? range.last : range.first) = middle;
  }
  return range;
}

int TreeExchange::slot_of(int place) const {
  int slot = 0;
  for (int bit = 1, from = blocks_.front().size / 2; from > 0; bit *= 2, from /= 2)
    if ((place & from) != 0) slot |= bit;
  return slot;
}

void TreeExchange::cut_evenly(int64_t num_items) {
  const int num_places = blocks_.front().size;
  begins_.resize(static_cast<size_t>(num_places) + 1);
  for (int place = 0; place <= num_places; ++place)
    begins_[static_cast<size_t>(place)] = num_items * place / num_places;
}

void TreeExchange::cut_by_pieces(int64_t piece_items) {
  const int num_places = blocks_.front().size;
  begins_.assign(1, 0);
  for (int place = 0; place < num_places; ++place) {
    const int num_pieces = slot_of(place) + num_places < channel_.num_ranks() ? 2 : 1;
    begins_.push_back(begins_.back() + piece_items * num_pieces);
  }
}

void TreeExchange::send(const std::byte* items, const Range& range, int64_t item_bytes, int to) {
  const int64_t num_bytes = num_items_of(range) * item_bytes;
  if (num_bytes > 0)  // the receiver skips it too
    channel_.send(items + begin_of(range.first) * item_bytes, num_bytes, to, kTreeTag, &batch_);
}

void TreeExchange::receive(std::byte* items, const Range& range, int64_t item_bytes, int from) {
  const int64_t num_bytes = num_items_of(range) * item_bytes;
  if (num_bytes > 0)
    channel_.receive(items + begin_of(range.first) * item_bytes, num_bytes, from, kTreeTag,
                     &batch_);
}

void TreeExchange::receive_to_scratch(const Range& range, int64_t item_bytes, int from) {
  const int64_t num_bytes = num_items_of(range) * item_bytes;
  std::byte* scratch = first_bytes(&scratch_, num_bytes);
  if (num_bytes > 0) channel_.receive(scratch, num_bytes, from, kTreeTag, &batch_);
}

/// Combines the own sums of a range with those in the scratch memory, into the own.
void TreeExchange::combine(std::byte* items, const Range& range, const Format& format,
                           bool received_is_left) {
  constexpr std::array<int, 3> kTwoParts{0, 1, 2};
  std::byte* own = items + begin_of(range.first) * format.in_bytes;
  std::array<const std::byte*, 2> parts{own, scratch_.data()};
  if (received_is_left) std::swap(parts[0], parts[1]);
  if (num_items_of(range) > 0)
    reduce_parts({parts, kTwoParts}, own, num_items_of(range), format.in, format.in, format.op);
}

void TreeExchange::halve(std::byte* sums, const Format& format) {
  const Block& block = blocks_[block_];
  for (int bit = 1; bit < block.size; bit *= 2) {
    const Range kept = held(local_, bit * 2), given = held(local_ ^ bit, bit * 2);
    const int partner = block.begin + (local_ ^ bit);
    // Both partners send the half that they give up, and add the received half to what they keep.
    receive_to_scratch(kept, format.in_bytes, partner);
    send(sums, given, format.in_bytes, partner);
    channel_.wait(&batch_);
    combine(sums, kept, format, (local_ & bit) != 0);
  }
}

/// Adds in the tree's order: the first block plus (the second plus (...)).
void TreeExchange::fold(std::byte* sums, const Format& format) {
  const Block& block = blocks_[block_];
  if (block_ + 1 < blocks_.size()) {
    const Block& next = blocks_[block_ + 1];
    const Range own = held(local_, block.size);
    receive_to_scratch(own, format.in_bytes, next.begin + (local_ & (next.size - 1)));
    channel_.wait(&batch_);
    // The next block has higher ranks, so its sums are the right operand.
    combine(sums, own, format, /*received_is_left=*/false);
  }
  if (is_first_block()) return;
  const Block& before = blocks_[block_ - 1];
  for (int i = local_; i < before.size; i += block.size)
    send(sums, held(i, before.size), format.in_bytes, before.begin + i);
  channel_.wait(&batch_);
}

/// Sends the results of each rank of the first block to all ranks.
void TreeExchange::spread(std::byte* items, int64_t item_bytes) {
  const Block& block = blocks_[block_];
  if (!is_first_block()) {
    const Block& before = blocks_[block_ - 1];
    for (int i = local_; i < before.size; i += block.size)
      receive(items, held(i, before.size), item_bytes, before.begin + i);
    channel_.wait(&batch_);
  }
  if (block_ + 1 < blocks_.size()) {
    const Block& next = blocks_[block_ + 1];
    send(items, held(local_, block.size), item_bytes, next.begin + (local_ & (next.size - 1)));
  }
  // Doubling: the halving's steps in reverse order.
  for (int bit = block.size / 2; bit > 0; bit /= 2) {
    const int partner = block.begin + (local_ ^ bit);
    receive(items, held(local_ ^ bit, bit * 2), item_bytes, partner);
    send(items, held(local_, bit * 2), item_bytes, partner);
    channel_.wait(&batch_);
  }
  channel_.wait(&batch_);
}

void TreeExchange::all_reduce(std::byte* sums, std::byte* out, int64_t num_items,
                              const Format& format) {
  const int64_t chunk_items = kTreeChunkBytes / format.in_bytes;
  for (int64_t begin = 0; begin < num_items; begin += chunk_items) {
    std::byte* from = sums + begin * format.in_bytes;
    std::byte* to = out + begin * format.out_bytes;
    cut_evenly(std::min(chunk_items, num_items - begin));
    halve(from, format);
    fold(from, format);
    // Only the first block has final sums; rounding them here gives all ranks the same bits.
    if (is_first_block() && from != to) {
      const Range own = held(local_, blocks_.front().size);
      convert(from + begin_of(own.first) * format.in_bytes,
              to + begin_of(own.first) * format.out_bytes, num_items_of(own), format.in,
              format.out);
    }
    spread(to, format.out_bytes);
  }
}

void TreeExchange::all_reduce_narrow(std::byte* values, int64_t num_items, const Format& format) {
  if (format.in == format.out) return all_reduce(values, values, num_items, format);
  const int64_t chunk_items = kTreeChunkBytes / format.in_bytes;
  for (int64_t begin = 0; begin < num_items; begin += chunk_items) {
    const int64_t num_here = std::min(chunk_items, num_items - begin);
    std::byte* here = values + begin * format.out_bytes;
    std::byte* sums = first_bytes(&sums_, num_here * format.in_bytes);
    convert(here, sums, num_here, format.out, format.in);
    all_reduce(sums, here, num_here, format);
  }
}

void TreeExchange::reduce_scatter(const std::byte* values, std::byte* out, int64_t num_items,
                                  const Format& format) {
  const int num_places = blocks_.front().size, num = channel_.num_ranks(), rank = channel_.rank();
  const int64_t run_items = std::max<int64_t>(1, kTreeChunkBytes / format.in_bytes / num);
  for (int64_t begin = 0; begin < num_items; begin += run_items) {
    const int64_t num_here = std::min(run_items, num_items - begin);
    cut_by_pieces(num_here);
    std::byte* sums = first_bytes(&sums_, num_here * num * format.in_bytes);
    const auto place_of = [&](int piece) {  // in `sums`
      const int place = slot_of(piece % num_places);
      return sums + (begin_of(place) + (piece < num_places ? 0 : num_here)) * format.in_bytes;
    };
    for (int piece = 0; piece < num; ++piece)
      convert(values + (piece * num_items + begin) * format.out_bytes, place_of(piece), num_here,
              format.out, format.in);
    halve(sums, format);
    fold(sums, format);
    std::byte* own = out + begin * format.out_bytes;
    const int64_t num_bytes = num_here * format.out_bytes;
    if (!is_first_block()) {
      if (rank >= num_places)
        channel_.receive(own, num_bytes, rank - num_places, kTreeTag, &batch_);
    } else {
      convert(place_of(rank), own, num_here, format.in, format.out);
      if (rank + num_places < num) {
        // This rank also has the piece of rank + num_places, which is in a later block.
        std::byte* further = first_bytes(&scratch_, num_bytes);
        convert(place_of(rank + num_places), further, num_here, format.in, format.out);
        channel_.send(further, num_bytes, rank + num_places, kTreeTag, &batch_);
      }
    }
    channel_.wait(&batch_);
  }
}

void TreeExchange::all_gather(std::byte* out, const std::byte* values, int64_t num_items,
                              int64_t item_bytes) {
  const int num_places = blocks_.front().size, num = channel_.num_ranks(), rank = channel_.rank();
  const int64_t run_items = std::max<int64_t>(1, kTreeChunkBytes / item_bytes / num);
  for (int64_t begin = 0; begin < num_items; begin += run_items) {
    const int64_t num_here = std::min(run_items, num_items - begin);
    const int64_t num_bytes = num_here * item_bytes;
    cut_by_pieces(num_here);
    std::byte* all = first_bytes(&sums_, num_bytes * num);
    const auto place_of = [&](int piece) {
      const int place = slot_of(piece % num_places);
      return all + (begin_of(place) + (piece < num_places ? 0 : num_here)) * item_bytes;
    };
    const std::byte* own = values + begin * item_bytes;
    if (!is_first_block()) {
      // Ranks of later blocks hand their piece to the rank that holds its place.
      channel_.send(own, num_bytes, rank - num_places, kTreeTag, &batch_);
    } else {
      std::memcpy(place_of(rank), own, static_cast<size_t>(num_bytes));
      if (rank + num_places < num)
        channel_.receive(place_of(rank + num_places), num_bytes, rank + num_places, kTreeTag,
                         &batch_);
    }
    channel_.wait(&batch_);
    spread(all, item_bytes);
    for (int piece = 0; piece < num; ++piece)
      std::memcpy(out + (piece * num_items + begin) * item_bytes, place_of(piece),
                  static_cast<size_t>(num_bytes));
  }
}

/// Broadcasts along a binomial tree. The rank at distance d from the root receives from the rank
/// whose distance lacks the lowest bit of d.
void TreeExchange::broadcast(std::byte* values, int64_t num_bytes, int root) {
  const int num = channel_.num_ranks(), distance = (channel_.rank() - root + num) % num;
  const auto rank_at = [&](int far) { return (root + far) % num; };
  int lowest_bit = 1;
  while (lowest_bit < num && (distance & lowest_bit) == 0) lowest_bit *= 2;
  for (int64_t begin = 0; begin < num_bytes; begin += kTreeChunkBytes) {
    const int64_t num_here = std::min(kTreeChunkBytes, num_bytes - begin);
    if (distance != 0) {
      channel_.receive(values + begin, num_here, rank_at(distance - lowest_bit), kTreeTag, &batch_);
      channel_.wait(&batch_);
    }
    for (int bit = lowest_bit / 2; bit > 0; bit /= 2)
      if (distance + bit < num)
        channel_.send(values + begin, num_here, rank_at(distance + bit), kTreeTag, &batch_);
    channel_.wait(&batch_);
  }
}

}  // namespace lockstep::dist::cpu
