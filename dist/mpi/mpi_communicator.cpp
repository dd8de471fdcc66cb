#include "dist/mpi/mpi_communicator.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "dist/backend_parts.h"
#include "dist/reduce_in_rank_order.h"

namespace lockstep::dist::mpi {
namespace {

constexpr int64_t kWholeBytes = 16 << 10;  // over all ranks: up to here one message beats two
constexpr int64_t kChunkBytes =
    4 << 20;  // of a tensor; on one host larger messages fall out of the caches

std::byte* bytes_of(const at::Tensor& values) {
  return static_cast<std::byte*>(values.mutable_data_ptr());
}

int as_count(int64_t num_bytes) {
  check(num_bytes >= 0 && num_bytes <= kChunkBytes, "a message larger than a chunk");
  return static_cast<int>(num_bytes);
}

/// Calls visit(first byte, bytes) for each chunk of num_bytes, none cutting an item of up to 8
/// bytes.
template <typename Visit>
void for_each_chunk(int64_t num_bytes, int64_t chunk_bytes, const Visit& visit) {
  for (int64_t begin = 0; begin < num_bytes; begin += chunk_bytes)
    visit(begin, std::min(chunk_bytes, num_bytes - begin));
}

/// Bytes of each of N pieces that travel together, so that all N fill about one chunk.
int64_t piece_chunk_bytes(int num_ranks) {
  return std::max<int64_t>(kChunkBytes / num_ranks / 8 * 8, 4096);
}

}  // namespace

MpiCommunicator::MpiCommunicator(OwnedComm comm)
    : comm_(std::move(comm)),
      rank_(comm_.rank()),
      num_ranks_(comm_.num_ranks()),
      runs_N_(num_ranks_),
      send_bytes_N_(num_ranks_),
      send_begin_N_(num_ranks_),
      receive_bytes_N_(num_ranks_),
      receive_begin_N_(num_ranks_) {}

std::byte* MpiCommunicator::scratch(int64_t num_bytes) {
  if (scratch_.size() < static_cast<size_t>(num_bytes)) scratch_.resize(num_bytes);
  return scratch_.data();
}

void MpiCommunicator::reduce_scratch(std::byte* out, int64_t run_bytes, const Items& items) {
  for (int r = 0; r < num_ranks_; ++r) runs_N_[r] = scratch_.data() + r * run_bytes;
  reduce_in_rank_order(runs_N_, out, run_bytes / items.item_bytes, items.dtype, items.op);
}

void MpiCommunicator::reduce_whole(std::byte* values, int64_t num_items, const Items& items) {
  const int num_bytes = as_count(num_items * items.item_bytes);
  std::byte* all = scratch(int64_t{num_bytes} * num_ranks_);
  check_mpi(MPI_Allgather(values, num_bytes, MPI_BYTE, all, num_bytes, MPI_BYTE, comm_.get()),
            "MPI_Allgather");
  reduce_scratch(values, num_bytes, items);
}

void MpiCommunicator::reduce_by_pieces(std::byte* values, int64_t num_items, const Items& items) {
  const auto piece_begin = [&](int r) {
    return as_count(num_items * r / num_ranks_ * items.item_bytes);
  };
  const int own_bytes = piece_begin(rank_ + 1) - piece_begin(rank_);
  for (int r = 0; r < num_ranks_; ++r) {
    send_begin_N_[r] = piece_begin(r);
    send_bytes_N_[r] = piece_begin(r + 1) - piece_begin(r);
    receive_begin_N_[r] = r * own_bytes;
    receive_bytes_N_[r] = own_bytes;
  }
  check_mpi(MPI_Alltoallv(values, send_bytes_N_.data(), send_begin_N_.data(), MPI_BYTE,
                          scratch(int64_t{own_bytes} * num_ranks_), receive_bytes_N_.data(),
                          receive_begin_N_.data(), MPI_BYTE, comm_.get()),
            "MPI_Alltoallv");
  reduce_scratch(values + piece_begin(rank_), own_bytes, items);
  check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values, send_bytes_N_.data(),
                           send_begin_N_.data(), MPI_BYTE, comm_.get()),
            "MPI_Allgatherv");
}

std::unique_ptr<Work> MpiCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device());
  const int64_t num_bytes = payload_bytes(values_K);
  bytes_reduced_ += num_bytes;
  if (num_ranks_ == 1) return std::make_unique<DoneWork>();

  const Items items{values_K.scalar_type(), static_cast<int64_t>(values_K.itemsize()), op};
  const bool is_small = num_bytes * num_ranks_ <= kWholeBytes;
  for_each_chunk(num_bytes, kChunkBytes, [&](int64_t begin, int64_t chunk_bytes) {
    std::byte* chunk = bytes_of(values_K) + begin;
    const int64_t num_items = chunk_bytes / items.item_bytes;
    is_small ? reduce_whole(chunk, num_items, items) : reduce_by_pieces(chunk, num_items, items);
  });
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> MpiCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, num_ranks_, device());
  bytes_reduced_ += payload_bytes(values_NK);
  const Items items{out_K.scalar_type(), static_cast<int64_t>(out_K.itemsize()), ReduceOp::kSum};
  const int64_t piece_bytes = payload_bytes(out_K);
  for_each_chunk(
      piece_bytes, piece_chunk_bytes(num_ranks_), [&](int64_t begin, int64_t chunk_bytes) {
        const int count = as_count(chunk_bytes);
        const OwnedPieceType piece(count, piece_bytes);
        check_mpi(MPI_Alltoall(bytes_of(values_NK) + begin, 1, piece.get(),
                               scratch(chunk_bytes * num_ranks_), count, MPI_BYTE, comm_.get()),
                  "MPI_Alltoall");
        reduce_scratch(bytes_of(out_K) + begin, chunk_bytes, items);
      });
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> MpiCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, num_ranks_, device());
  const int64_t piece_bytes = payload_bytes(values_K);
  for_each_chunk(piece_bytes, piece_chunk_bytes(num_ranks_),
                 [&](int64_t begin, int64_t chunk_bytes) {
                   const int count = as_count(chunk_bytes);
                   const OwnedPieceType piece(count, piece_bytes);
                   check_mpi(MPI_Allgather(bytes_of(values_K) + begin, count, MPI_BYTE,
                                           bytes_of(out_NK) + begin, 1, piece.get(), comm_.get()),
                             "MPI_Allgather");
                 });
  return std::make_unique<DoneWork>();
}

void MpiCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device());
  check(root >= 0 && root < num_ranks_, "broadcast from a rank that does not exist");
  for_each_chunk(payload_bytes(values_K), kChunkBytes, [&](int64_t begin, int64_t chunk_bytes) {
    check_mpi(
        MPI_Bcast(bytes_of(values_K) + begin, as_count(chunk_bytes), MPI_BYTE, root, comm_.get()),
        "MPI_Bcast");
  });
}

void MpiCommunicator::barrier() { check_mpi(MPI_Barrier(comm_.get()), "MPI_Barrier"); }

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  check(color >= 0, "split needs a color >= 0");
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_.get(), color, key, &part), "MPI_Comm_split");
  return std::make_unique<MpiCommunicator>(OwnedComm(part));
}

}  // namespace lockstep::dist::mpi
