// Flat buffers in shared memory, and the reduction of their buckets.
#include "dist/reducer/shared_bucket.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {

// SharedFlatMemory: one copy for the values, then one copy for each rank's gradients, all with
// equal offsets.

namespace {

/// Alignment: copies start at pages, buffers at cache lines.
constexpr int64_t kPageBytes = 4096, kLineBytes = 64;

int64_t rounded_up(int64_t num_bytes, int64_t unit_bytes) {
  return (num_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/// Returns the bytes of one copy of all parameters. Each parameter may start a buffer.
int64_t bytes_of_copy(const ParamTable& params) {
  int64_t num_bytes = 0;
  for (const Param& param : params)
    num_bytes += rounded_up(static_cast<int64_t>(param.tensor.nbytes()), kLineBytes);
  return rounded_up(num_bytes, kPageBytes);
}

}  // namespace

SharedFlatMemory::SharedFlatMemory(Communicator& comm, SharedMemory memory,
                                   const ParamTable& params)
    : comm_(comm), memory_(std::move(memory.begin)), copy_bytes_(bytes_of_copy(params)) {
  check(memory_ != nullptr, "shared buffers in memory that is there");
}

int64_t SharedFlatMemory::bytes_for(const ParamTable& params, int num_ranks) {
  return (1 + num_ranks) * bytes_of_copy(params);
}

void SharedFlatMemory::begin() {
  // No rank may still read the old layout when a new one is written.
  comm_.barrier();
  given_bytes_ = 0;
}

at::Tensor SharedFlatMemory::part(int64_t begin_bytes, int64_t num_elements,
                                  at::ScalarType dtype) const {
  return at::from_blob(
      // Each tensor keeps the memory mapped.
      memory_.get() + begin_bytes, {num_elements}, [keep = memory_](void*) {},
      at::TensorOptions(dtype));
}

void SharedFlatMemory::give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) {
  const int64_t begin_bytes = given_bytes_;
  given_bytes_ +=
      rounded_up(num_elements * static_cast<int64_t>(c10::elementSize(dtype)), kLineBytes);
  check(given_bytes_ <= copy_bytes_, "the buffers of a layout hold the parameters");
  buffer->values_E = part(begin_bytes, num_elements, dtype);
  if (buffer->frozen) return;
  for (int rank = 0; rank < comm_.world_size(); ++rank)
    buffer->grads_by_rank.push_back(
        part((1 + rank) * copy_bytes_ + begin_bytes, num_elements, dtype));
  buffer->grads_E = buffer->grads_by_rank[static_cast<size_t>(comm_.rank())];
}

// SharedBucket: no messages, since all ranks map all gradients. Blocks keep the working set in the
// cache, so that sum, mask, division and check read memory once.

namespace {

/// Block size in elements: fits L2 while the sum is masked, divided and checked. A multiple of 8,
/// so that blocks of a mask start at a byte.
constexpr int64_t kBlockElements = 16384;

}  // namespace

SharedBucket::SharedBucket(std::vector<at::Tensor> grads_by_rank, const BucketShards& pieces,
                           int rank)
    : pieces_(pieces), rank_(rank), kept_(pieces), inputs_(grads_by_rank.size()) {
  for (const at::Tensor& grads_E : grads_by_rank) {
    check(grads_E.dim() == 1 && grads_E.is_contiguous() && grads_E.is_cpu(),
          "a bucket is a run of elements on the CPU");
    check(grads_E.numel() == pieces_.num_elements(), "a bucket and its pieces");
    own_by_rank_.push_back(
        static_cast<const std::byte*>(piece_of(grads_E, pieces_, rank_).const_data_ptr()));
  }
  own_E_ = piece_of(grads_by_rank.at(static_cast<size_t>(rank_)), pieces_, rank_);
}

void SharedBucket::set_kept(const uint8_t* bits, int64_t first_item) {
  kept_.keep_all();
  kept_.set(bits, first_item);
}

at::Tensor SharedBucket::pack(bool packed) {
  check(!packed, "packing where nothing travels");
  return {};
}

std::unique_ptr<Work> SharedBucket::launch(Communicator& /*comm*/) {
  return std::make_unique<DoneWork>();
}

bool SharedBucket::unpack(int64_t num_samples, Dropped dropped) {
  bool finite = true;
  for (int64_t begin_E = 0; begin_E < own_E_.numel(); begin_E += kBlockElements) {
    const int64_t num_here = std::min(kBlockElements, own_E_.numel() - begin_E);
    // Decided for each block, since masks are uneven.
    const bool are_few =
        !kept_.are_all() && is_few(count_kept(kept_.bits(rank_) + begin_E / 8, num_here), num_here);
    finite = (are_few ? reduce_kept(begin_E, num_here, num_samples, dropped)
                      : reduce_all(begin_E, num_here, num_samples)) &&
             finite;
  }
  return finite;
}

bool SharedBucket::reduce_all(int64_t begin_E, int64_t num_elements, int64_t num_samples) {
  const auto item_bytes = static_cast<int64_t>(own_E_.itemsize());
  const at::ScalarType dtype = own_E_.scalar_type();
  std::byte* const own = own_bytes() + begin_E * item_bytes;
  for (size_t r = 0; r < inputs_.size(); ++r) inputs_[r] = own_by_rank_[r] + begin_E * item_bytes;
  reduce_in_rank_order(inputs_, own, num_elements, dtype, ReduceOp::kSum);
  if (!kept_.are_all())
    zero_pruned(own, kept_.bits(rank_) + begin_E / 8, num_elements, static_cast<int>(item_bytes));
  return divide_and_check(own, num_elements, dtype, num_samples);
}

bool SharedBucket::reduce_kept(int64_t begin_E, int64_t num_elements, int64_t num_samples,
                               Dropped dropped) {
  const auto item_bytes = static_cast<int>(own_E_.itemsize());
  const at::ScalarType dtype = own_E_.scalar_type();
  const uint8_t* const bits = kept_.bits(rank_) + begin_E / 8;
  const int64_t begin_bytes = begin_E * item_bytes;
  constexpr int64_t kMostKept = kBlockElements / 8;  // largest num_kept for which is_few() holds
  const int64_t room_bytes = kMostKept * item_bytes;
  packed_.resize(inputs_.size() * static_cast<size_t>(room_bytes));
  int64_t num_kept = 0;
  for (size_t r = 0; r < inputs_.size(); ++r) {
    std::byte* const packed_K = packed_.data() + static_cast<int64_t>(r) * room_bytes;
    num_kept = pack_kept(own_by_rank_[r] + begin_bytes, bits, num_elements, item_bytes, packed_K);
    inputs_[r] = packed_K;
  }
  std::byte* const sums_K = packed_.data();
  // In place: the first rank's packed values become the sums.
  reduce_in_rank_order(inputs_, sums_K, num_kept, dtype, ReduceOp::kSum);
  const bool finite = divide_and_check(sums_K, num_kept, dtype, num_samples);
  (dropped == Dropped::kAnything ? put_kept : unpack_kept)(sums_K, bits, num_elements, item_bytes,
                                                           own_bytes() + begin_bytes);
  return finite;
}

}  // namespace lockstep::dist
