#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "heap_meter.h"

/// Common part of fuzzers of readers: options of AddressSanitizer and limits that a reader must
/// keep. One source of a program includes it.
extern "C" const char* __asan_default_options() {
  return "handle_abort=1:malloc_context_size=4:quarantine_size_mb=8:detect_leaks=0:"
         "detect_stack_use_after_return=0";
}

namespace lockstep::fuzz {

inline constexpr double kMaxSeconds = 5;  // the sanitizers make it several times slower
inline constexpr unsigned kHangSeconds = 60;
inline constexpr int64_t kMaxHeapBytes = 64 << 20;

/// Defect of reading a case; empty if there is none. Defects: an exception other than
/// Error(kBadData), too much CPU time or too much memory. SIGALRM comes after kHangSeconds. Counts
/// cases that were read completely.
template <typename Read>
std::string reading_trouble(const Read& read, int64_t* num_read) {
  HeapMeter::restart();
  alarm(kHangSeconds);
  const std::clock_t start = std::clock();
  std::string trouble;
  try {
    read();
    ++*num_read;
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kBadData) trouble = std::string("it throws: ") + fault.what();
  } catch (const std::exception& fault) {
    trouble = std::string("it throws: ") + fault.what();
  }
  alarm(0);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (trouble.empty() && seconds > kMaxSeconds) trouble = fmt::format("it takes {:.2f} s", seconds);
  if (trouble.empty() && HeapMeter::peak_bytes() > kMaxHeapBytes)
    trouble = fmt::format("it holds {} MiB", HeapMeter::peak_bytes() >> 20);
  return trouble;
}

/// Says what was tried. A mutator that breaks everything at the first byte would test nothing
/// behind it, so some cases must be read whole. Returns the program's exit status.
inline int fuzz_verdict(const std::string& what, uint64_t num_tried, int64_t num_read,
                        int64_t num_failed) {
  fmt::print("{}: {} cases, {} are read, {} fail\n", what, num_tried, num_read, num_failed);
  if (num_tried == 0) return fmt::print("FAILED: no case was tried\n"), 1;
  const bool goes_deep = num_tried < 1000 || num_read > static_cast<int64_t>(num_tried / 100);
  if (!goes_deep) fmt::print("FAILED: too few cases are read\n");
  return num_failed == 0 && goes_deep ? 0 : 1;
}

}  // namespace lockstep::fuzz
