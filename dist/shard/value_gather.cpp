// Three forms of the same gather: packed, in place (equal shards), and through windows.
#include "dist/shard/value_gather.h"

#include "dist/shard/shard_slots.h"

namespace lockstep::dist {
namespace {

int64_t gather_kept(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                    const ShardMasks& kept, ScratchBuffer& scratch) {
  const int num_ranks = pieces.num_pieces();
  const at::Tensor message_NK = scratch.take(num_ranks * kept.largest(), values_E.options());
  const at::Tensor own_K = slot_of(message_NK, comm.rank(), num_ranks);
  pack_piece(values_E, pieces, kept, comm.rank(), own_K);
  comm.all_gather(message_NK, own_K)->wait();
  for (int piece = 0; piece < num_ranks; ++piece)
    // The own piece stays as it is: unpacking would zero its dropped values.
    if (piece != comm.rank())
      unpack_piece(slot_of(message_NK, piece, num_ranks), pieces, kept, piece, values_E);
  return static_cast<int64_t>(message_NK.nbytes());
}

int64_t gather_in_place(Communicator& comm, const at::Tensor& values_E,
                        const BucketShards& pieces) {
  comm.all_gather(values_E, piece_of(values_E, pieces, comm.rank()))->wait();
  return static_cast<int64_t>(values_E.nbytes());
}

int64_t gather_windows(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                       ScratchBuffer& scratch) {
  const int num_ranks = pieces.num_pieces();
  const at::Tensor message_NK = scratch.take(num_ranks * pieces.largest(), values_E.options());
  comm.all_gather(message_NK, window_of(values_E, pieces, comm.rank()))->wait();
  for (int piece = 0; piece < num_ranks; ++piece) {
    // Windows overlap, so only the piece inside a window is current.
    if (piece == comm.rank()) continue;
    const int64_t skipped = pieces.begin(piece) - pieces.window_begin(piece);
    copy_items(slot_of(message_NK, piece, num_ranks).narrow(0, skipped, pieces.size(piece)),
               piece_of(values_E, pieces, piece));
  }
  return static_cast<int64_t>(message_NK.nbytes());
}

}  // namespace

int64_t gather_pieces(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                      const ShardMasks& kept, bool packed, ScratchBuffer& scratch) {
  if (packed) return gather_kept(comm, values_E, pieces, kept, scratch);
  if (pieces.are_equal()) return gather_in_place(comm, values_E, pieces);
  return gather_windows(comm, values_E, pieces, scratch);
}

}  // namespace lockstep::dist
