#include "data/dataset_table.h"

#include <charconv>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/random.h"

namespace lockstep::data {

NamedTable<DatasetType>& dataset_types() {
  static NamedTable<DatasetType> types = [] {
    NamedTable<DatasetType> own("data.type");
    own.add(digits_type());
    own.add(random_type());
    for (DatasetType& type : files_types()) own.add(std::move(type));
    return own;
  }();
  return types;
}

DatasetOptions read_dataset_options(ConfigReader in, DatasetUse use) {
  DatasetOptions options;
  in.read_choice("type", &options.type, dataset_types().names(), "data set (docs/data.md)");
  if (const DatasetType* type = dataset_types().find(options.type))
    static_cast<DatasetPlan&>(options) = type->read(&in, use);
  in.done();
  return options;
}

// DigitsDataset: data/digits/digits_csv.S puts data/digits/digits.csv into the program, so that a
// first run needs no download.
extern "C" const char lockstep_digits_csv_begin[];
extern "C" const char lockstep_digits_csv_end[];

namespace {

constexpr int64_t kNumPixels = 64;
constexpr int64_t kNumClasses = 10;
constexpr int kMaxPixel = 16;
constexpr int64_t kNumRows = 1797;

std::string_view built_in_csv() {
  return {lockstep_digits_csv_begin,
          static_cast<size_t>(lockstep_digits_csv_end - lockstep_digits_csv_begin)};
}

struct Row {
  std::array<float, kNumPixels> pixels;
  int64_t label;
};

/// Throws Error(kBadData) with file, line and the expected form.
[[noreturn]] void refuse(const std::string& file, size_t line, const std::string& what) {
  throw Error(ExitCode::kBadData, "data",
              fmt::format("{}:{}: {}; a digits file has 1,797 lines of 64 pixels (0 to 16) "
                          "and a digit, and ends with a line break",
                          file, line, what));
}

Row parse_row(std::string_view text, const std::string& file, size_t line) {
  std::array<int, kNumPixels + 1> numbers{};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto [next, fault] = std::from_chars(at, end, numbers[i]);
    const bool last = i + 1 == numbers.size();
    if (fault != std::errc() || (last ? next != end : next == end || *next != ','))
      refuse(file, line, fmt::format("field {} of 65 is missing or not a number", i + 1));
    if (numbers[i] < 0 || numbers[i] > (last ? kNumClasses - 1 : kMaxPixel))
      refuse(file, line, fmt::format("field {} is {}, out of range", i + 1, numbers[i]));
    at = next + (last ? 0 : 1);
  }
  Row row{};
  // Pixels are counts from 0 to 16; they become values from 0 to 1.
  for (size_t i = 0; i < row.pixels.size(); ++i)
    row.pixels[i] = static_cast<float>(numbers[i]) / kMaxPixel;
  row.label = numbers[kNumPixels];
  return row;
}

std::vector<Row> parse_rows(std::string_view csv, const std::string& file) {
  std::vector<Row> rows;
  size_t line = 1;
  for (; !csv.empty(); ++line) {
    const size_t end = csv.find('\n');
    if (end == std::string_view::npos) refuse(file, line, "the file is truncated in this line");
    rows.push_back(parse_row(csv.substr(0, end), file, line));
    csv.remove_prefix(end + 1);
  }
  if (static_cast<int64_t>(rows.size()) != kNumRows)
    refuse(file, line, fmt::format("the file ends after {} lines", rows.size()));
  return rows;
}

/// True if the row is in the split: every fifth row is for the test, the others are for training.
bool belongs_to(const std::string& split, size_t row) {
  return (row % 5 == 4) == (split == "test");
}

MemoryDataset load(const std::string& split, const std::string& path) {
  const std::string file_text = path.empty() ? "" : files::read(path, int64_t{64} << 20);
  const std::vector<Row> rows =
      parse_rows(path.empty() ? built_in_csv() : file_text, path.empty() ? "digits.csv" : path);
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!belongs_to(split, i)) continue;
    pixels.insert(pixels.end(), rows[i].pixels.begin(), rows[i].pixels.end());
    labels.push_back(rows[i].label);
  }
  return {at::tensor(pixels, at::kFloat).view({-1, 1, 8, 8}), at::tensor(labels, at::kLong),
          kNumClasses};
}

}  // namespace

DigitsDataset::DigitsDataset(const std::string& split, const std::string& path)
    : MemoryDataset(load(split, path)) {}

DatasetType digits_type() {
  return {"digits", [](ConfigReader* in, DatasetUse use) {
            std::string split = use == DatasetUse::kTraining ? "train" : "test";
            std::string path;
            in->read_choice("split", &split, {"train", "test"},
                            "digits: part of the data; "
                            "data.eval: default test");
            in->read(
                "path", &path,
                "digits: CSV file of 64 pixels and a label per line; default the built-in copy");
            return [split, path](const DatasetInputs&) {
              return std::make_unique<DigitsDataset>(split, path);
            };
          }};
}

// RandomDataset: numbers come from counters, so all ranks generate the same data without messages.

namespace {

constexpr double kMaxRandomNumbers = 1e10;

/// Records a fault if the numbers, 4 bytes each, would take too much memory.
void limit_random_numbers(const RandomOptions& options, ConfigReader* in) {
  double all = static_cast<double>(options.samples);
  for (const int64_t size : options.shape) all *= static_cast<double>(size);
  if (all <= kMaxRandomNumbers) return;
  in->fault("samples", fmt::format("'{}.samples' times the shape is {:.3g} numbers, at most {:.0e} "
                                   "fit in memory; use fewer samples or a smaller shape",
                                   in->path(), all, kMaxRandomNumbers));
}

/// Streams of random numbers, so that inputs and targets are independent.
enum Stream : int64_t { kInputs = 1, kTargets = 2, kTokens = 3 };

at::Tensor uniform_inputs(std::vector<int64_t> shape, int64_t num_samples, int64_t seed) {
  shape.insert(shape.begin(), num_samples);
  at::Tensor inputs_SX = at::empty(shape, at::kFloat);
  const CounterRandom random{seed, kInputs};
  float* values = inputs_SX.mutable_data_ptr<float>();
  for (int64_t i = 0; i < inputs_SX.numel(); ++i)
    values[i] = static_cast<float>(2 * random.uniform(i) - 1);
  return inputs_SX;
}

/// Returns uniform numbers in [0, bound).
at::Tensor uniform_counts(at::IntArrayRef shape, int64_t bound, int64_t seed, Stream stream) {
  at::Tensor counts = at::empty(shape, at::kLong);
  const CounterRandom random{seed, stream};
  auto* values = counts.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < counts.numel(); ++i)
    values[i] = static_cast<int64_t>(random.below(i, bound));
  return counts;
}

MemoryDataset random_tokens(const RandomOptions& options) {
  const int64_t num_tokens = options.shape.at(0);
  // One token more than a sample has: inputs and targets are two windows of the same text.
  const at::Tensor text_ST =
      uniform_counts({options.samples, num_tokens + 1}, options.tokens, options.seed, kTokens);
  return {text_ST.narrow(1, 0, num_tokens).contiguous(),
          text_ST.narrow(1, 1, num_tokens).contiguous(), options.tokens, TargetKind::kTokens};
}

MemoryDataset random_numbers(const RandomOptions& options) {
  return {uniform_inputs(options.shape, options.samples, options.seed),
          uniform_counts({options.samples}, options.classes, options.seed, kTargets),
          options.classes};
}

}  // namespace

RandomDataset::RandomDataset(const RandomOptions& options)
    : MemoryDataset(options.tokens > 0 ? random_tokens(options) : random_numbers(options)) {}

RandomDataset::RandomDataset(const std::vector<int64_t>& shape, int64_t num_classes,
                             int64_t num_samples, int64_t seed)
    : RandomDataset(
          {.shape = shape, .classes = num_classes, .samples = num_samples, .seed = seed}) {}

DatasetType random_type() {
  return {"random", [](ConfigReader* in, DatasetUse) {
            RandomOptions options;
            in->read("shape", &options.shape, count_from(1), "random: shape of one input");
            in->read("classes", &options.classes, between(2, 1e6), "random: number of classes");
            in->read("samples", &options.samples, count_from(1), "random: number of samples");
            in->read("seed", &options.seed, at_least(0), "random: seed");
            in->read("tokens", &options.tokens, between(0, 1e6),
                     "random: vocabulary of random token sequences [shape] for next-token "
                     "targets; 0: none");
            limit_random_numbers(options, in);
            if (options.tokens > 0 && options.shape.size() != 1)
              in->fault("shape",
                        fmt::format("'{}.shape' of tokens is one number, their count", in->path()));
            return [options](const DatasetInputs&) {
              return std::make_unique<RandomDataset>(options);
            };
          }};
}

}  // namespace lockstep::data
