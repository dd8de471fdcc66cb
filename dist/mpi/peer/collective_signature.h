#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist::mpi {

enum class CallKind : int32_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kSplit,
  kShareMemory
};

/// Signature of a rank's collective. Sent between ranks in its memory layout.
struct Call {
  CallKind kind = CallKind::kBarrier;
  int32_t dtype = 0;      ///< at::ScalarType
  int32_t argument = 0;   ///< operation or root; 0 if the kind has none
  int32_t reserved = 0;   ///< makes padding explicit: no byte of a message is undefined
  int64_t num_items = 0;  ///< of the tensor whose size is equal on all ranks
  uint64_t number = 0;    ///< of this communicator's calls, from 1

  bool operator==(const Call&) const = default;
};

/// Formats a call: "all_reduce of 1000 Float (sum), call 7".
std::string text_of(const Call& call);

/// Throws Error(kDisagree) naming both ranks and their calls, unless the calls are equal.
void require_same_call(const Call& mine, int rank, const Call& theirs, int their_rank);

/// Types and operation of a local sum.
struct Items {
  at::ScalarType dtype;
  int64_t item_bytes;
  ReduceOp op;
};

inline Items items_of(const at::Tensor& values, ReduceOp op) {
  return {values.scalar_type(), static_cast<int64_t>(values.itemsize()), op};
}

inline std::byte* bytes_of(const at::Tensor& values) {
  return static_cast<std::byte*>(values.mutable_data_ptr());
}

inline Call call_of(CallKind kind, const at::Tensor& values, int argument = 0) {
  return {kind, static_cast<int32_t>(values.scalar_type()), argument, 0, values.numel(), 0};
}

}  // namespace lockstep::dist::mpi
