// index_fuzz [--seed S] [--cases N | --seconds T] [--first I] INDEX...
//
// Decodes mutated indexes with right checksums: of the files, and of a save that it makes, which it
// then also verifies and restores. Built with AddressSanitizer and UBSan, so a memory error ends
// it. A case also fails if it takes more processor time than its size accounts for, holds more than
// 64 MiB and 24 times the index's bytes beyond the files' sizes, or throws anything but
// Error(kBadData, kInputMissing). What failed is written to a file, with the arguments that repeat
// it.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/restore.h"
#include "heap_meter.h"
#include "row_mutator.h"
#include "tests/checkpoint/bundle/sliced_save.h"
#include "tests/checkpoint/bundle/table_rows.h"
#include "tests/support/case_budget.h"

// Leaks are looked for by the asan preset; LibTorch keeps what it has until the end.
extern "C" const char* __asan_default_options() {
  return "handle_abort=1:malloc_context_size=4:quarantine_size_mb=8:detect_leaks=0:"
         "detect_stack_use_after_return=0";
}

namespace lockstep::fuzz {
namespace {

using checkpoint::TableRows;

constexpr double kMaxSeconds = 1.0;
constexpr unsigned kHangSeconds = 60;
constexpr int64_t kMaxHeapBytes = 64 << 20;
constexpr int64_t kMaxHeapPerByte = 24;  // of the index

struct Options {
  uint64_t seed = 1;
  CaseBudget budget{1500};
  std::vector<std::string> files;
};

struct Case {
  uint64_t seed = 0, index = 0;
  std::string bytes;
};
Case current;  // for those who are called when all is lost

void print_case(const std::string& why) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("index_fuzz-{}.index", current.index))
          .string();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  std::fwrite(current.bytes.data(), 1, current.bytes.size(), file);
  std::fclose(file);
  fmt::print("FAILED: {}\n  repeat it with --seed {} --first {} --cases 1; bytes in {}\n", why,
             current.seed, current.index, path);
  std::fflush(stdout);
}

void on_death() { print_case("the program died"); }
void on_alarm(int /*signal*/) {
  print_case(fmt::format("no end after {} s", kHangSeconds));
  _exit(1);
}

/// A sound save in a folder of its own: whole tensors, slices, a text, a sparse tensor.
class Save {
 public:
  Save() {
    checkpoint::tests::SaveMaker maker(2);
    maker.add("_lockstep/whole", at::arange(6, at::kFloat).reshape({2, 3}));
    maker.add("_lockstep/flags", at::ones({9}, at::kBool), 1);
    maker.add_sliced("_lockstep/rows", at::arange(40, at::kFloat).reshape({8, 5}),
                     checkpoint::tests::cut_at({8, 5}, {11, 23, 40}));
    maker.add_sliced("_lockstep/columns", at::arange(12, at::kLong).reshape({3, 4}),
                     checkpoint::tests::cut_along({3, 4}, 1, {1, 3}));
    maker.add_text("_lockstep/text", "name: digits");
    maker.add("_lockstep/masks/w", at::full({2}, 5, at::kByte), 1);
    maker.add("_lockstep/sparse/_lockstep/w/values", at::ones({4}));
    maker.add_text("_lockstep/sparse/_lockstep/w/form", "[4, 4] _lockstep/masks/w");
    maker.write(prefix());
    rows_ = checkpoint::decode_table(files::read(prefix() + ".index"));
    for (const std::string& name : files::list(folder_.path()))
      num_bytes_ += static_cast<int64_t>(std::filesystem::file_size(folder_ / name));
  }

  std::string prefix() const { return folder_ / "m-1"; }
  const TableRows& rows() const { return rows_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  checkpoint::tests::TemporaryFolder folder_;
  TableRows rows_;
  int64_t num_bytes_ = 0;
};

/// True if `body` ends; false if it throws what bad input may throw. kConfig: a sound index of
/// tensors that have other types or shapes than those of this run.
bool passes(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kBadData && fault.code() != ExitCode::kInputMissing &&
        fault.code() != ExitCode::kConfig)
      throw;
    return false;
  }
}

/// Everything that reads, over the save with the index of this case. True if it restores.
bool read_save(const Save& save, const std::string& index) {
  checkpoint::tests::put_bytes(save.prefix() + ".index", index);
  std::string text;
  StateList state = {{"_lockstep/whole", at::zeros({2, 3})},
                     {"_lockstep/rows", at::zeros({5, 8}).t()},
                     {"_lockstep/columns", at::zeros({3, 4}, at::kLong)},
                     {"_lockstep/text", {}, &text},
                     {"_lockstep/w", at::zeros({4, 4}), nullptr, 1.0},
                     {"_lockstep/flags", at::zeros({9}, at::kBool), nullptr, 1.0}};
  state[2].held = {{1, 2}, {7, 12}};
  const bool restores = passes([&] { checkpoint::restore(save.prefix(), state); });
  (void)checkpoint::verify(save.prefix());
  (void)checkpoint::quick_check(save.prefix());
  passes([&] {
    checkpoint::BundleReader reader(save.prefix());
    checkpoint::DenseView view(&reader);
    size_t num_read = 0;
    for (const std::string& name : view.names()) {
      if (++num_read > 50) break;
      passes([&] { view.is_text(name) ? void(view.read_texts(name)) : void(view.read(name)); });
    }
  });
  return restores;
}

void read_strings(uint64_t index, const std::string& bytes) {
  try {
    checkpoint::decode_strings(bytes, static_cast<int64_t>(index % 7));
  } catch (const std::runtime_error&) {
  }
}

struct Counts {
  uint64_t tried = 0, decoded = 0, restored = 0, failed = 0;
};

class Fuzzer {
 public:
  explicit Fuzzer(const Options& options)
      : options_(options), mutator_(seeds_of(options), options.seed) {}

  Counts run() {
    Counts counts;
    for (uint64_t i = options_.budget.first(); options_.budget.has(i); ++i) {
      ++counts.tried;
      const bool on_save = i % 3 == 0;
      current = {options_.seed, i, mutator_.index_of_case(i, on_save ? 0 : i)};
      const std::string trouble = trouble_of_current(on_save, &counts);
      if (trouble.empty()) continue;
      print_case(trouble);
      if (++counts.failed == 5) break;
    }
    return counts;
  }

 private:
  std::vector<TableRows> seeds_of(const Options& options) {
    std::vector<TableRows> seeds = {save_.rows()};
    for (const std::string& file : options.files)
      seeds.push_back(checkpoint::decode_table(files::read(file)));
    return seeds;
  }

  void run_current(bool on_save, Counts* counts) {
    counts->decoded += passes([&] { checkpoint::decode_index(current.bytes, "fuzz"); }) ? 1 : 0;
    if (on_save) counts->restored += read_save(save_, current.bytes) ? 1 : 0;
    read_strings(
        current.index,
        mutator_.bytes_of_case(current.index, checkpoint::encode_strings({"ab", "", "x"}).bytes));
  }

  std::string trouble_of_current(bool on_save, Counts* counts) {
    HeapMeter::restart();
    alarm(kHangSeconds);
    const std::clock_t start = std::clock();
    std::string trouble;
    try {
      run_current(on_save, counts);
    } catch (const std::exception& fault) {
      trouble = std::string("it throws: ") + fault.what();
    }
    alarm(0);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    // the index is held once here; reading the save holds it once more at a time
    const int64_t beyond = HeapMeter::peak_bytes() - static_cast<int64_t>(current.bytes.size()) -
                           (on_save ? save_.num_bytes() : 0);
    note_most(seconds, beyond);
    if (!trouble.empty()) return trouble;
    // the sanitizers make it several times slower; large indexes take longer
    const double allowed_s = kMaxSeconds * (5 + static_cast<double>(current.bytes.size()) / 3e5);
    if (seconds > allowed_s) return fmt::format("it takes {:.2f} s", seconds);
    if (beyond > kMaxHeapBytes + kMaxHeapPerByte * static_cast<int64_t>(current.bytes.size()))
      return fmt::format("it holds {} MiB beyond the files' sizes", beyond >> 20);
    return "";
  }

  void note_most(double seconds, int64_t beyond) {
    if (seconds <= slowest_s_ && beyond <= most_bytes_) return;
    slowest_s_ = std::max(slowest_s_, seconds);
    most_bytes_ = std::max(most_bytes_, beyond);
    fmt::print("case {} ({} bytes): slowest {:.3f} s, most heap beyond the files {:.1f} MiB\n",
               current.index, current.bytes.size(), slowest_s_,
               static_cast<double>(most_bytes_) / (1 << 20));
  }

  Options options_;
  Save save_;
  RowMutator mutator_;
  double slowest_s_ = 0;
  int64_t most_bytes_ = 0;
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (options.budget.takes(name, value) || name == "--seed")
      ++i;
    else
      options.files.emplace_back(name);
    if (name == "--seed") options.seed = std::strtoull(value, nullptr, 10);
  }
  return options;
}

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a log shows how far it came
  HeapMeter::install();
  __sanitizer_set_death_callback(on_death);
  std::signal(SIGALRM, on_alarm);
  const Counts counts = Fuzzer(options).run();
  fmt::print("seed {}: {} indexes, {} decode, {} saves restore, {} fail\n", options.seed,
             counts.tried, counts.decoded, counts.restored, counts.failed);
  // A mutator that breaks everything at the first row would test nothing behind it.
  const bool goes_deep =
      counts.tried < 300 || (counts.decoded > counts.tried / 20 && counts.restored > 5);
  if (!goes_deep) fmt::print("FAILED: too few indexes decode\n");
  return counts.failed == 0 && goes_deep ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) { return lockstep::fuzz::main(argc, argv); }
