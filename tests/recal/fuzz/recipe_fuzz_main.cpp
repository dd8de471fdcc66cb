// recipe_fuzz [--seed S] [--cases N | --seconds T] [--first I] FILE...
//
// Reads mutated recipes of the files (YAML, or Markdown whose ```yaml blocks are taken), and
// compiles a timeline of each that loads. Built with AddressSanitizer and UBSan, so a memory error
// ends it. A case also fails if it takes more than a second of
// processor time, holds more than 64 MiB, throws, or
// loads with a place outside of the text. What failed is printed whole, with the arguments that
// repeat it.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include "base/files/files.h"
#include "heap_meter.h"
#include "mutator.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/timeline.h"
#include "tests/support/case_budget.h"

// Shallow stacks of allocations and a small quarantine: a memory error is found all the same.
extern "C" const char* __asan_default_options() {
  return "handle_abort=1:malloc_context_size=2:quarantine_size_mb=8:detect_stack_use_after_return="
         "0";
}

namespace lockstep::fuzz {
namespace {

constexpr double kMaxSeconds =
    1.0;  // and as much for each 300 kB: a large recipe takes long to parse
constexpr unsigned kHangSeconds = 20;
constexpr int64_t kMaxHeapBytes = 64 << 20;

struct Options {
  uint64_t seed = 1;
  CaseBudget budget{10'000};
  std::vector<std::string> files;
};

struct Case {
  uint64_t seed = 0;
  uint64_t index = 0;
  std::string text;
};
Case current;  // for those who are called when all is lost

void print_case(const std::string& why) {
  fmt::print("FAILED: {}\n  repeat it with --seed {} --first {} --cases 1\n--- recipe, {} bytes\n",
             why, current.seed, current.index, current.text.size());
  std::fwrite(current.text.data(), 1, current.text.size(), stdout);
  fmt::print("\n--- end of the recipe\n");
  std::fflush(stdout);
}

void on_death() { print_case("the program died"); }
void on_alarm(int /*signal*/) {
  print_case(fmt::format("no end after {} s", kHangSeconds));
  _exit(1);
}

/// The recipes of a file: the whole text, and the ```yaml blocks of a Markdown page.
void add_recipes(const std::string& file, std::vector<std::string>* recipes) {
  const std::string text = files::read(file);
  const std::string open = "\n```yaml\n";
  size_t at = text.find(open);
  if (at == std::string::npos) recipes->push_back(text);
  for (; at != std::string::npos; at = text.find(open, at + 1)) {
    const size_t begin = at + open.size();
    const std::string block = text.substr(begin, text.find("\n```", begin) + 1 - begin);
    recipes->push_back(block.front() == '-' ? "version: 1.0.0\nmodifiers:\n" + block : block);
  }
}

recal::TimelineInputs inputs_of(uint64_t index) {
  static constexpr std::array<int64_t, 5> kStepsPerEpoch{1, 7, 100, 1'000, 1'000'000};
  recal::TimelineInputs inputs{.steps_per_epoch = kStepsPerEpoch[index % kStepsPerEpoch.size()],
                               .base_learning_rate = 0.1};
  if (index % 4 == 0) return inputs;  // a bare recipe
  inputs.params = {{"blocks.0.conv.weight", true, 72},
                   {"blocks.0.conv.bias", false, 8},
                   {"blocks.1.conv.weight", true, 144},
                   {"head.weight", true, 40}};
  inputs.layers = {{.name = "blocks.0.conv", .weight_param = 0, .has_batch_norm = true},
                   {.name = "blocks.1.conv", .weight_param = 2},
                   {.name = "head", .weight_param = 3}};
  if (index % 3 == 0) inputs.max_steps = 100;
  return inputs;
}

/// Defect in the faults of a read recipe; empty if there is none.
std::string trouble_in(const Diagnostics& faults, const std::string& text) {
  const auto num_lines = 1 + std::count(text.begin(), text.end(), '\n');
  for (const Fault& fault : faults.list())
    if (fault.message.empty() || fault.line < 0 || fault.line > num_lines || fault.column < 0)
      return fmt::format("a fault at {}:{} of {} lines: {}", fault.line, fault.column, num_lines,
                         fault.message);
  return "";
}

struct Outcome {
  bool is_read = false;
  bool is_compiled = false;
  std::string trouble;
};

Outcome run(const std::string& text, uint64_t index) {
  Outcome outcome;
  Diagnostics faults;
  const recal::Recipe recipe =
      recal::parse_recipe(index % 5 == 0 ? "recipe.md" : "recipe.yaml", text, &faults);
  outcome.trouble = trouble_in(faults, text);
  outcome.is_read = faults.empty();
  if (!outcome.is_read) return outcome;
  const recal::Timeline timeline = recal::Timeline::compile(recipe, inputs_of(index), &faults);
  outcome.trouble = trouble_in(faults, text);
  outcome.is_compiled = faults.empty();
  if (!outcome.is_compiled) return outcome;
  const int64_t end = timeline.total_steps().value_or(1000);
  for (const int64_t step : {int64_t{0}, end / 3, end}) {
    (void)timeline.learning_rate_at(step, 0);
    (void)timeline.target_sparsity_at(step);
    (void)timeline.trainable_at(step);
    (void)timeline.quantization_at(step);
  }
  (void)timeline.digest();
  return outcome;
}

/// CPU time of this process, so that other load does not make a case slow.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string trouble_of_current(Outcome* outcome) {
  HeapMeter::restart();
  alarm(kHangSeconds);
  const double start_s = cpu_seconds();
  try {
    *outcome = run(current.text, current.index);
  } catch (const std::exception& fault) {
    outcome->trouble = std::string("it throws: ") + fault.what();
  }
  alarm(0);
  const double seconds = cpu_seconds() - start_s;
  const int64_t heap_bytes = HeapMeter::peak_bytes();
  static double slowest_s = 0;
  static int64_t largest_bytes = 0;
  if (seconds > slowest_s || heap_bytes > largest_bytes) {
    slowest_s = std::max(slowest_s, seconds);
    largest_bytes = std::max(largest_bytes, heap_bytes);
    fmt::print("case {}: slowest {:.3f} s, most heap {:.1f} MiB\n", current.index, slowest_s,
               static_cast<double>(largest_bytes) / (1 << 20));
  }
  if (!outcome->trouble.empty()) return outcome->trouble;
  if (seconds > kMaxSeconds * (1 + static_cast<double>(current.text.size()) / 3e5))
    return fmt::format("it takes {:.2f} s", seconds);
  if (heap_bytes > kMaxHeapBytes) return fmt::format("it holds {} MiB", heap_bytes >> 20);
  return "";
}

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
  Options options = read_options(argc, argv);
  std::vector<std::string> recipes;
  for (const std::string& file : options.files) add_recipes(file, &recipes);
  if (recipes.empty()) return fmt::print("usage: recipe_fuzz [--seed S] FILE...\n"), 2;
  HeapMeter::install();
  __sanitizer_set_death_callback(on_death);
  std::signal(SIGALRM, on_alarm);

  Mutator mutator(std::move(recipes), options.seed);
  uint64_t num_read = 0;
  uint64_t num_compiled = 0;
  uint64_t num_failed = 0;
  for (uint64_t i = options.budget.first(); options.budget.has(i); ++i) {
    current = {options.seed, i, mutator.recipe_of_case(i)};
    Outcome outcome;
    const std::string trouble = trouble_of_current(&outcome);
    num_read += outcome.is_read ? 1 : 0;
    num_compiled += outcome.is_compiled ? 1 : 0;
    num_failed += trouble.empty() ? 0 : 1;
    if (!trouble.empty()) print_case(trouble);
    if (num_failed == 5) break;
  }
  fmt::print("seed {}: {} recipes, {} load, {} compile, {} fail\n", options.seed,
             options.budget.num_tried(), num_read, num_compiled, num_failed);
  // A mutator that breaks everything at the first byte would test nothing behind the parser.
  const bool goes_deep =
      options.budget.num_tried() < 1000 || num_compiled > options.budget.num_tried() / 50;
  if (!goes_deep) fmt::print("FAILED: too few recipes load\n");
  return num_failed == 0 && goes_deep ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) { return lockstep::fuzz::main(argc, argv); }
