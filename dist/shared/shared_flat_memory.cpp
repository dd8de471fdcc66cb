// Layout: one copy for the values, then one copy for each rank's gradients, all with equal offsets.
#include "dist/shared/shared_flat_memory.h"

#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/error.h"

namespace lockstep::dist {
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

}  // namespace lockstep::dist
