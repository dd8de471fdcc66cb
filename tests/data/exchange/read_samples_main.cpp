// read_samples OUT_FOLDER: for each line of its input opens a data set as the section `data.train`
// of a run file would (YAML, flow style), and writes its samples of epoch 0 for programs that judge
// them: inputs.bin, targets.bin (row-major, native), shape.txt, and classes.txt. Answers "done", or
// exit code and fault. The line `again` reads the set that was opened last once more, `forget`
// makes the stores forget what they know, as between two jobs. A line `eval SECTION` opens it as
// `data.eval` with the set that was opened last, `infer SECTION` as a feed.
//
// read_samples --write-tfrecord FILE: records of our own hand.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files/files.h"
#include "data/dataset_table.h"
#include "remote/object_store.h"
#include "tests/support/tfrecord_writer.h"

namespace lockstep::data {
namespace {

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  files::Writer writer(path);
  writer.append(bytes);
  writer.close();
}

void write_tensor(const std::filesystem::path& path, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  write_file(path, {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
}

/// SECTION, `eval SECTION` or `infer SECTION`. `last`: may be null.
std::unique_ptr<Dataset> open_section(const std::string& line, const Dataset* last) {
  DatasetUse use = DatasetUse::kTraining;
  if (line.starts_with("eval ")) use = DatasetUse::kEvaluation;
  if (line.starts_with("infer ")) use = DatasetUse::kInference;
  const bool is_train = use == DatasetUse::kTraining;
  const std::string section = is_train ? line : line.substr(line.find(' ') + 1);
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("section", section, &faults);
  const DatasetOptions options =
      read_dataset_options(ConfigReader(document.root(), "data.train", document, &faults), use);
  faults.throw_if_any("config");
  return options.make({.found = options.find ? options.find() : "",
                       .trained = is_train || last == nullptr ? SampleSpec() : last->spec(),
                       .use = use});
}

void write_samples(const Dataset* set, const std::filesystem::path& folder) {
  std::vector<int64_t> all(static_cast<size_t>(set->num_samples()));
  std::iota(all.begin(), all.end(), 0);
  const Samples samples = set->get(all, 0);
  write_file(folder / "digest.txt", set->digest());
  write_tensor(folder / "inputs.bin", samples.inputs_BX);
  if (samples.targets_BY.defined())
    write_tensor(folder / "targets.bin", samples.targets_BY);
  else
    write_file(folder / "targets.bin", "");
  write_file(folder / "classes.txt", fmt::format("{}", fmt::join(set->spec().class_names, "\n")));
  write_file(folder / "shape.txt", fmt::format("{}", fmt::join(samples.inputs_BX.sizes(), " ")));
}

void answer(const std::filesystem::path& folder) {
  std::unique_ptr<Dataset> set;
  for (std::string section; std::getline(std::cin, section);) {
    try {
      if (section == "forget") {
        remote::forget_stores();
      } else if (section != "again") {
        set = open_section(section, set.get());
      }
      write_samples(set.get(), folder);
      fmt::print("done\n");
    } catch (const Error& fault) {
      fmt::print("{} {}\n", static_cast<int>(fault.code()), fault.what());
    }
    std::fflush(stdout);
  }
}

void write_tfrecord(const std::filesystem::path& path) {
  using namespace lockstep::tests;
  std::string bytes;
  for (int i = 0; i < 20; ++i)
    bytes += tfrecord(ExampleText()
                          .add("raw", bytes_feature(std::string(static_cast<size_t>(i), 'x')))
                          .add("label", ints_feature({i, -i}))
                          .add("values", floats_feature({0.5F * static_cast<float>(i)}))
                          .bytes());
  write_file(path, bytes);
}

}  // namespace
}  // namespace lockstep::data

int main(int argc, char** argv) {
  lockstep::remote::add_stores();
  const char* const cache_bytes = std::getenv("CACHE_BYTES");  // NOLINT(concurrency-mt-unsafe)
  lockstep::files::set_store_limits(
      {.cache_bytes = cache_bytes == nullptr ? int64_t{1} << 28 : std::atoll(cache_bytes),
       .timeout_s = 1});
  if (argc == 3 && std::string_view(argv[1]) == "--write-tfrecord")
    lockstep::data::write_tfrecord(argv[2]);
  else if (argc == 2)
    lockstep::data::answer(argv[1]);
  else
    return 64;
  return 0;
}
