#pragma once

#include <cstdint>

namespace lockstep::dist {

/// Flags that any rank sends to all others without a matching call there. The others may be in a
/// collective, or busy elsewhere, and poll heard(). Flags are the lowest kNumWords bits of a
/// number. Threads: one sender, one reader.
class Notice {
 public:
  static constexpr int kNumWords = 2;

  virtual ~Notice() = default;

  /// Sends those flags of `words` that this rank has not sent before. Call it again while others
  /// may not have received them, since it also drives pending transfers. Throws
  /// Error(kUnavailable).
  virtual void tell(uint32_t words) = 0;
  /// Returns all flags received from other ranks so far.
  virtual uint32_t heard() = 0;
};

}  // namespace lockstep::dist
