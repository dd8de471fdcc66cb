// data_feed SECTION BATCH: opens a data set as the section `data.train` of a run file would (YAML,
// flow style), and reads shuffled batches of it on this thread: for each line "N" the seconds of N
// batches as "result SECONDS". bench/data asks it.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "data/datasets/dataset_table.h"
#include "data/loader.h"

namespace lockstep {
namespace {

std::unique_ptr<data::Dataset> open_section(const std::string& section) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("section", section, &faults);
  const data::DatasetOptions options = data::read_dataset_options(
      ConfigReader(document.root(), "data.train", document, &faults), data::DatasetUse::kTraining);
  faults.throw_if_any("config");
  return options.make({});
}

void answer(const std::string& section, int64_t batch) {
  const std::unique_ptr<data::Dataset> set = open_section(section);
  data::Sampler sampler({.num_samples = set->num_samples(), .global_batch_size = batch});
  data::Loader loader(*set, sampler, 0, 1);
  for (int64_t num_batches = 0; std::cin >> num_batches;) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < num_batches; ++i) (void)loader.next();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print("result {:.9f}\n", seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  at::set_num_threads(1);
  try {
    lockstep::answer(argv[1], std::stoll(argv[2]));
  } catch (const lockstep::Error& fault) {
    fmt::print(stderr, "{}\n", fault.what());
    return static_cast<int>(fault.code());
  }
  return 0;
}
