#pragma once

#include <cstdint>

namespace lockstep::dist {

/// Words that any rank tells all others without their help: they may be in a collective, or busy
/// elsewhere, and hear them when they listen. Words are the lowest kNumWords bits of a number.
/// Threads: one that tells, one that listens.
class Notice {
 public:
  static constexpr int kNumWords = 2;

  virtual ~Notice() = default;

  /// Tells those of `words` that this rank has not told before. Call it again while the others may
  /// not have heard: it also moves on what is under way. Throws Error(kUnavailable).
  virtual void tell(uint32_t words) = 0;
  /// Whatever other ranks have told so far and has arrived.
  virtual uint32_t heard() = 0;
};

}  // namespace lockstep::dist
