// data_feed SECTION BATCH: opens a data set as the section `data.train` of a run file would (YAML,
// flow style), and reads shuffled batches of it on this thread: for each line "N" the seconds of N
// batches as "result SECONDS"; for "show I" 97 numbers of sample I as "values ...".
// data_feed --decode DENOMINATOR FILE...: for each line "N" the seconds of N JPEG files, in turn,
// as pixels of so much smaller an image.
// data_feed --move BYTES FILE BATCH: for each line "N" the seconds in which N batches of records of
// so many bytes, in random order, are copied out of the file's pages, and four times as many bytes
// are written: what memory needs for it. bench/data asks it.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files/files.h"
#include "data/dataset_table.h"
#include "data/formats/file_set.h"
#include "data/images/decode.h"
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

/// Runs `work` for each of N and prints the seconds.
template <typename Work>
void tell_seconds(int64_t num, const Work& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (int64_t i = 0; i < num; ++i) work(i);
  fmt::print("result {:.9f}\n", std::chrono::duration<double>(Clock::now() - begin).count());
  std::fflush(stdout);
}

/// So few that a line holds them, spread over the sample so that every channel is seen.
void show(data::Dataset& set, int64_t index) {
  const at::Tensor values = set.get({&index, 1}, /*epoch=*/0).inputs_BX.flatten();
  std::string line = "values";
  for (int64_t i = 0; i < 97; ++i)
    line += fmt::format(" {}", values[i * (values.numel() - 1) / 96].item<float>());
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void answer(const std::string& section, int64_t batch) {
  const std::unique_ptr<data::Dataset> set = open_section(section);
  data::Sampler sampler({.num_samples = set->num_samples(), .global_batch_size = batch});
  data::Loader loader(*set, sampler, 0, 1);
  for (std::string word; std::cin >> word;) {
    int64_t index = 0;
    if (word == "show" && std::cin >> index)
      show(*set, index);
    else
      tell_seconds(std::stoll(word), [&](int64_t) { (void)loader.next(); });
  }
}

void answer_decoding(int denominator, const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) files.push_back(files::read(path));
  std::vector<uint8_t> pixels;
  for (int64_t num_files = 0; std::cin >> num_files;)
    tell_seconds(num_files, [&](int64_t i) {
      (void)data::decode_jpeg(files[static_cast<size_t>(i) % files.size()], 3, denominator,
                              &pixels);
    });
}

/// Answers like a source that reads records: the next record is prefetched while this one is used.
void answer_moving(int64_t record_bytes, const std::string& path, int64_t batch) {
  const data::ResidentFile file(path);
  const int64_t num_records = file.num_bytes() / record_bytes;
  data::Sampler sampler({.num_samples = num_records, .global_batch_size = batch});
  std::vector<char> record(static_cast<size_t>(record_bytes));
  std::vector<char> floats(static_cast<size_t>(4 * record_bytes * batch));
  std::string storage;
  for (int64_t num_batches = 0; std::cin >> num_batches;)
    tell_seconds(num_batches, [&](int64_t) {
      const std::vector<int64_t> rows = sampler.next().indices;
      for (size_t i = 0; i < rows.size(); ++i) {
        if (i + 1 < rows.size()) file.expect(rows[i + 1] * record_bytes, record_bytes);
        const std::string_view bytes = file.bytes(rows[i] * record_bytes, record_bytes, &storage);
        std::copy(bytes.begin(), bytes.end(), record.begin());
        char* const out = floats.data() + 4 * record_bytes * static_cast<int64_t>(i);
        std::fill(out, out + 4 * record_bytes, record.back());
      }
    });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2) return 64;
  at::set_num_threads(1);
  try {
    if (arguments[0] == "--move")
      lockstep::answer_moving(std::stoll(arguments[1]), arguments.at(2),
                              std::stoll(arguments.at(3)));
    else if (arguments[0] == "--decode")
      lockstep::answer_decoding(std::stoi(arguments[1]), {arguments.begin() + 2, arguments.end()});
    else
      lockstep::answer(arguments[0], std::stoll(arguments[1]));
  } catch (const lockstep::Error& fault) {
    fmt::print(stderr, "{}\n", fault.what());
    return static_cast<int>(fault.code());
  }
  return 0;
}
