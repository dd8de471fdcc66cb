#pragma once

#include <cstdint>
#include <memory>

/// Memory of a network's activations.
namespace lockstep::infer {

/// Memory that is used again and again, in huge pages where the system has them: a layer would
/// otherwise wait for new pages, or for addresses of small ones. Grows as needed. Thread-safe.
class Arena {
 public:
  Arena();

  /// Returns a block, aligned to 64 bytes, with any content. Its last holder gives it back.
  /// Blocks may outlive the arena. Throws Error(kIo) if the system has no memory.
  std::shared_ptr<void> take(int64_t num_bytes);

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

}  // namespace lockstep::infer
