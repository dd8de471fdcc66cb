// weights_fuzz TARGET [--seed S] [--cases N | --seconds T] [--first I]
//
// Reads mutated files of weights: pickle (a state dict's pickle, in an archive with right
// checksums), torch (the whole archive) or safetensors. Built with AddressSanitizer and UBSan, so a
// memory error ends it. A case also fails if it takes more processor time or memory than so small a
// file accounts for, or throws anything but Error(kBadData).
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/import/load_weights.h"
#include "heap_meter.h"
#include "tests/checkpoint/weights/torch_archive.h"
#include "tests/data/fuzz/byte_mutator.h"
#include "tests/support/case_budget.h"
#include "tests/support/reading_trouble.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::fuzz {
namespace {

struct Target {
  std::string seed;
  std::function<std::string(const std::string& bytes)> file_of;  // of the mutated bytes
  std::unique_ptr<checkpoint::WeightsFile> (*open)(const std::string& path);
};

const tests::Members kStorages = {{"0", std::string(24, 'v')}, {"1", std::string(16, 'w')}};

std::string pickle_seed() {
  const tests::PickledTensor floats{.storage_elements = 6, .shape = {2, 3}, .strides = {3, 1}};
  const tests::PickledTensor counts{.storage = "1",
                                    .type = "LongStorage",
                                    .storage_elements = 2,
                                    .offset = 1,
                                    .shape = {1},
                                    .strides = {1},
                                    .bits = "}" + tests::p_text("neg") + "\x89s"};
  return tests::pickle_of(
      tests::p_dict({{"a.weight", floats.bytes()},
                     {"inner", "}q\x05(" + tests::p_text("n") + counts.bytes() +
                                   tests::p_text("k") + tests::p_ints({1, 2}) + "u"},
                     {"again", "h\x05"},
                     {"size", tests::p_global("torch", "Size") + ")R"},
                     {"set", "\x8f(K\x01\x90"},
                     {"more", tests::p_global("collections", "defaultdict") + ")R"},
                     {"list", "](K\x01M\x02\x03N\x88G12345678\x8c\x01xe"}}));
}

std::string safetensors_seed() {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("y":{"dtype":"I64","shape":[],"data_offsets":[16,24]}})";
  return tests::le(header.size(), 8) + header + std::string(24, 'v');
}

std::map<std::string, Target> targets() {
  const auto itself = [](const std::string& bytes) { return bytes; };
  const auto in_archive = [](const std::string& bytes) {
    return tests::torch_archive(bytes, kStorages);
  };
  return {{"pickle", {pickle_seed(), in_archive, checkpoint::open_torch_file}},
          {"torch", {in_archive(pickle_seed()), itself, checkpoint::open_torch_file}},
          {"safetensors", {safetensors_seed(), itself, checkpoint::open_safetensors_file}}};
}

std::string arguments_of_case;  // that repeat it
void on_death() { fmt::print("FAILED: the program died in {}\n", arguments_of_case); }
void on_alarm(int /*signal*/) {
  fmt::print("FAILED: no end after {} s of {}\n", kHangSeconds, arguments_of_case);
  _exit(1);
}

void read_weights(const Target& target, const std::string& path) {
  const auto file = target.open(path);
  for (const std::string& name : file->names()) {
    const checkpoint::ValueForm form = file->form(name);
    check(file->read(name).sizes() == form.shape, "a value has another form than it says");
  }
}

int main(int argc, char** argv) {
  CaseBudget budget(20'000);
  uint64_t seed = 1;
  std::string name;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--seed")
      seed = std::strtoull(argv[++i], nullptr, 10);
    else if (budget.takes(argument, value))
      ++i;
    else
      name = argument;
  }
  const std::map<std::string, Target> all = targets();
  const auto found = all.find(name);
  if (found == all.end()) return 64;
  HeapMeter::install();
  __sanitizer_set_death_callback(on_death);
  std::signal(SIGALRM, on_alarm);
  const tests::TemporaryFolder folder;
  const std::string path = folder.path() / "case";
  ByteMutator mutator({found->second.seed}, seed);
  int64_t num_read = 0, num_failed = 0;
  for (uint64_t i = budget.first(); num_failed < 5 && budget.has(i); ++i) {
    arguments_of_case = fmt::format("{} --seed {} --first {} --cases 1", name, seed, i);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        << found->second.file_of(mutator.bytes_of_case(i));
    const std::string trouble =
        reading_trouble([&] { read_weights(found->second, path); }, &num_read);
    if (trouble.empty()) continue;
    fmt::print("FAILED: {}; repeat it with {}\n", trouble, arguments_of_case);
    ++num_failed;
  }
  return fuzz_verdict(fmt::format("{}, seed {}", name, seed), budget.num_tried(), num_read,
                      num_failed);
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) { return lockstep::fuzz::main(argc, argv); }
