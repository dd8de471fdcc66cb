#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include "base/error.h"
#include "heap_meter.h"
#include "tests/data/fuzz/byte_mutator.h"
#include "tests/support/case_budget.h"

/// Main program of fuzzers that read mutated files, options of AddressSanitizer, and limits that a
/// reader must keep. One source of a program includes it.
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

/// Files of one format, and their reader.
struct Format {
  std::vector<std::string> seeds;  ///< good files
  std::function<void(const std::string& bytes)> read;
  void (*mend)(std::string* bytes) = nullptr;  ///< for three cases of four
};

/// Case that is being read, for those who are called when all is lost.
struct Case {
  std::string program, format;
  uint64_t seed = 1, index = 0;
  std::string bytes;
};
inline Case current;

/// Prints why a case failed and how to repeat it, and stores its bytes.
inline void print_case(const std::string& why) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      fmt::format("{}-{}-{}", current.program, current.format, current.index);
  std::ofstream(path, std::ios::binary) << current.bytes;
  fmt::print("FAILED: {}\n  repeat it with {} --seed {} --first {} --cases 1; bytes in {}\n", why,
             current.format, current.seed, current.index, path.string());
  std::fflush(stdout);
}

/// Runs a fuzzer with the arguments FORMAT [--seed S] [--cases N | --seconds T] [--first I].
/// Returns its exit status: 64 if the format is unknown.
inline int fuzz_main(int argc, char** argv, const std::map<std::string, Format>& formats) {
  constexpr uint64_t kCases = 20'000, kMostFailures = 5, kUnmended = 4;
  CaseBudget budget(kCases);
  current.program = std::filesystem::path(argv[0]).filename().string();
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (budget.takes(name, value) || name == "--seed")
      ++i;
    else
      current.format = name;
    if (name == "--seed") current.seed = std::strtoull(value, nullptr, 10);
  }
  const auto found = formats.find(current.format);
  if (found == formats.end()) return 64;
  const Format& format = found->second;
  HeapMeter::install();
  __sanitizer_set_death_callback([] { print_case("the program died"); });
  std::signal(SIGALRM, [](int /*signal*/) {
    print_case(fmt::format("no end after {} s", kHangSeconds));
    _exit(1);
  });
  ByteMutator mutator(format.seeds, current.seed);
  int64_t num_read = 0, num_failed = 0;
  for (uint64_t i = budget.first(); num_failed < int64_t{kMostFailures} && budget.has(i); ++i) {
    current.index = i;
    current.bytes = mutator.bytes_of_case(i);
    if (format.mend != nullptr && i % kUnmended != 0) format.mend(&current.bytes);
    const std::string trouble = reading_trouble([&] { format.read(current.bytes); }, &num_read);
    if (trouble.empty()) continue;
    print_case(trouble);
    ++num_failed;
  }
  return fuzz_verdict(fmt::format("{}, seed {}", current.format, current.seed), budget.num_tried(),
                      num_read, num_failed);
}

}  // namespace lockstep::fuzz
