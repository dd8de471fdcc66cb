#pragma once

#include <memory>
#include <vector>

#include "base/tensors/flat_memory.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Flat buffers in memory that all ranks map: values first, then each rank's gradients, buffer by
/// buffer, each aligned to a cache line.
class SharedFlatMemory final : public FlatMemory {
 public:
  /// memory: bytes_for() bytes, from comm.share_memory(). `comm` must outlive this.
  SharedFlatMemory(Communicator& comm, SharedMemory memory, const ParamTable& params);

  /// Bytes for any layout of these parameters, whichever are trainable.
  static int64_t bytes_for(const ParamTable& params, int num_ranks);

  void begin() override;
  void give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) override;
  bool is_writer() const override { return comm_.rank() == 0; }
  void meet() override { comm_.barrier(); }

 private:
  at::Tensor part(int64_t begin_bytes, int64_t num_elements, at::ScalarType dtype) const;

  Communicator& comm_;
  const std::shared_ptr<std::byte> memory_;
  const int64_t copy_bytes_;  ///< size of one copy of all parameters
  int64_t given_bytes_ = 0;   ///< used so far in each copy
};

}  // namespace lockstep::dist
