#pragma once

#include <cstdint>
#include <memory>

/// Memory of a network's activations.
namespace lockstep::infer {

/// Memory that is used again and again, on large pages where the system has them. New pages and
/// addresses of small ones took 4 to 20 % of a network's time. Grows as needed. Thread-safe.
class Arena {
 public:
  Arena();

  /// Returns a block, aligned to 64 bytes, with any content. Its last holder gives it back.
  /// Blocks may outlive the arena.
  std::shared_ptr<void> take(int64_t num_bytes);

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

}  // namespace lockstep::infer
