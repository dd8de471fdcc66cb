#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/kept_memory.h"
#include "checkpoint/bundle_reader.h"

namespace lockstep::checkpoint {

/// A staging buffer for tensors that are read as one group: their values are read into it,
/// verified there, and copied into live memory afterwards, so that a read that fails leaves live
/// memory as it was. Holds the wanted elements of each tensor, close together.
class StagedRead {
 public:
  /// One tensor of the group.
  struct Tensor {
    const TensorRead* read = nullptr;
    std::vector<ElementRange> wanted;  ///< ascending, apart
    std::vector<int64_t> wanted_at_E;  ///< where each range begins in the tensor's buffer
    int64_t offset = 0;                ///< of the tensor's buffer, in bytes
    int64_t num_bytes = 0;
  };

  /// Bytes of a group, so far as its first tensor does not need more.
  static constexpr int64_t kGroupBytes = int64_t{32} << 20;

  /// Takes a group off the front of `reads`: as many as fit in kGroupBytes, one at least. `reads`
  /// and `memory` must outlive the object.
  StagedRead(std::span<const TensorRead>* reads, KeptMemory* memory);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The tensor's buffer.
  char* buffer(const Tensor& tensor) const { return bytes_.data() + tensor.offset; }
  /// Copies all buffers into live memory, which is row-major on the CPU.
  void copy_out(int num_threads) const;

 private:
  std::vector<Tensor> tensors_;
  std::span<char> bytes_;
};

}  // namespace lockstep::checkpoint
