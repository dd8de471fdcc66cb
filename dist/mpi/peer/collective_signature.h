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

/// What a rank says of its collective. Travels between ranks as it lies in memory.
struct Call {
  CallKind kind = CallKind::kBarrier;
  int32_t dtype = 0;      ///< at::ScalarType
  int32_t argument = 0;   ///< operation or root; 0 where there is none
  int32_t reserved = 0;   ///< no byte of a message is undefined
  int64_t num_items = 0;  ///< of the tensor that all ranks have alike
  uint64_t number = 0;    ///< of this communicator's calls, from 1

  bool operator==(const Call&) const = default;
};

/// "all_reduce of 1000 Float (sum), call 7".
std::string text_of(const Call& call);

/// Throws Error(kDisagree) naming both ranks and what each brought, unless the calls are equal.
void require_same_call(const Call& mine, int rank, const Call& theirs, int their_rank);

/// What a local sum must know of a call's items.
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
