#include "data/dataset.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/digits_dataset.h"
#include "data/random_dataset.h"

namespace lockstep::data {
namespace {

constexpr double kMaxRandomNumbers = 1e10;

/// All of them lie in memory, 4 bytes each.
void limit_random_numbers(const DatasetOptions& options, ConfigReader* in) {
  double all = static_cast<double>(options.samples);
  for (const int64_t size : options.shape) all *= static_cast<double>(size);
  if (all <= kMaxRandomNumbers) return;
  in->fault("samples",
            fmt::format("'{}.samples' times the shape make {:.3g} numbers, at most {:.0e} are held "
                        "in memory; take fewer samples or a smaller shape",
                        in->path(), all, kMaxRandomNumbers));
}

}  // namespace

DatasetOptions read_dataset_options(ConfigReader in, DatasetOptions options) {
  in.read_choice("type", &options.type, {"digits", "random"}, "which data set");
  if (options.type == "digits") {
    in.read_choice("split", &options.split, {"train", "test"},
                   "digits: which fixed part of the data");
    in.read("path", &options.path,
            "digits: a CSV file of 64 pixels and a label a line, instead of the built-in copy");
  } else {
    in.read("shape", &options.shape, count_from(1), "random: shape of one input");
    in.read("classes", &options.classes, between(2, 1e6), "random: number of classes");
    in.read("samples", &options.samples, count_from(1), "random: number of samples");
    in.read("seed", &options.seed, at_least(0), "random: which numbers are drawn");
    limit_random_numbers(options, &in);
  }
  in.done();
  return options;
}

std::unique_ptr<Dataset> make_dataset(const DatasetOptions& options) {
  if (options.type == "digits") return std::make_unique<DigitsDataset>(options.split, options.path);
  check(options.type == "random", "the reader lets only known data sets pass");
  return std::make_unique<RandomDataset>(options.shape, options.classes, options.samples,
                                         options.seed);
}

}  // namespace lockstep::data
