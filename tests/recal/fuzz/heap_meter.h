#pragma once

#include <cstdint>

namespace lockstep::fuzz {

/// Bytes that the program holds from the allocator, as AddressSanitizer's allocator counts them.
/// One meter at a time; install() once, before the first reading.
class HeapMeter {
 public:
  static void install();
  /// Starts a measurement: peak_bytes() counts bytes beyond those allocated now.
  static void restart();
  static int64_t peak_bytes();
};

}  // namespace lockstep::fuzz
