// The digits are in the program, so that a first run needs no download.
#include "data/datasets/digits_dataset.h"

#include <charconv>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"

// data/digits/digits.csv; digits_csv.S includes it in the program.
extern "C" const char lockstep_digits_csv_begin[];
extern "C" const char lockstep_digits_csv_end[];

namespace lockstep::data {
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
    if (end == std::string_view::npos) refuse(file, line, "the file is cut short in this line");
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

Samples load(const std::string& split, const std::string& path) {
  const std::string file_text = path.empty() ? "" : files::read(path, int64_t{64} << 20);
  const std::vector<Row> rows =
      parse_rows(path.empty() ? built_in_csv() : file_text, path.empty() ? "digits.csv" : path);
  std::vector<const Row*> chosen;
  for (size_t i = 0; i < rows.size(); ++i)
    if (belongs_to(split, i)) chosen.push_back(&rows[i]);

  const auto num_chosen = static_cast<int64_t>(chosen.size());
  Samples all{at::empty({num_chosen, 1, 8, 8}, at::kFloat), at::empty({num_chosen}, at::kLong)};
  for (size_t i = 0; i < chosen.size(); ++i) {
    std::copy(chosen[i]->pixels.begin(), chosen[i]->pixels.end(),
              all.inputs_BX.mutable_data_ptr<float>() + i * kNumPixels);
    all.targets_BY.mutable_data_ptr<int64_t>()[i] = chosen[i]->label;
  }
  return all;
}

MemoryDataset as_dataset(const Samples& all) {
  return {all.inputs_BX, all.targets_BY, kNumClasses};
}

}  // namespace

DigitsDataset::DigitsDataset(const std::string& split, const std::string& path)
    : MemoryDataset(as_dataset(load(split, path))) {}

DatasetType digits_type() {
  return {
      "digits", [](ConfigReader* in, DatasetUse use) {
        std::string split = use == DatasetUse::kTraining ? "train" : "test";
        std::string path;
        in->read_choice("split", &split, {"train", "test"}, "digits: which fixed part of the data");
        in->read("path", &path,
                 "digits: a CSV file of 64 pixels and a label a line, instead of the built-in "
                 "copy; other types: a file, a folder, or a pattern such as data/*.tfrecord");
        return [split, path](const DatasetInputs&) {
          return std::make_unique<DigitsDataset>(split, path);
        };
      }};
}

}  // namespace lockstep::data
