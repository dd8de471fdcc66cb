// .npy and safetensors: arrays whose first axis counts the samples. Numbers are converted when a
// record is read.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"

namespace lockstep::data {
namespace {

/// Converts numbers one by one, from and to unaligned memory.
template <typename From, typename To>
void convert_numbers(std::string_view from, std::string* to) {
  const size_t num = from.size() / sizeof(From);
  to->resize(num * sizeof(To));
  for (size_t i = 0; i < num; ++i) {
    From number;
    std::memcpy(&number, from.data() + i * sizeof(From), sizeof number);
    const To converted = static_cast<To>(number);  // NOLINT(bugprone-signed-char-misuse): a number
    std::memcpy(to->data() + i * sizeof(To), &converted, sizeof converted);
  }
}

/// Converts from the file's type, which is known only at run time.
template <typename To>
void convert_as(NumberType type, std::string_view from, std::string* to) {
  using Convert = void (*)(std::string_view, std::string*);
  constexpr std::array<Convert, 12> kByType = {
      // in the order of NumberType
      convert_numbers<uint8_t, To>,       convert_numbers<int8_t, To>,
      convert_numbers<uint16_t, To>,      convert_numbers<int16_t, To>,
      convert_numbers<uint32_t, To>,      convert_numbers<int32_t, To>,
      convert_numbers<int64_t, To>,       convert_numbers<c10::Half, To>,
      convert_numbers<c10::BFloat16, To>, convert_numbers<float, To>,
      convert_numbers<double, To>,        convert_numbers<uint8_t, To>};
  kByType.at(static_cast<size_t>(type))(from, to);
}

/// Array in a file whose first axis counts the samples; there may be 0.
class ArrayFile {
 public:
  ArrayFile(std::shared_ptr<const ResidentFile> file, ArrayHeader header)
      : file_(std::move(file)), header_(std::move(header)) {
    if (header_.shape.empty() || (header_.num_bytes == 0 && header_.shape[0] > 0))
      refuse_file(file_->path(),
                  "contains an array without an axis of samples, or with empty samples");
    if (header_.shape[0] > 0) row_bytes_ = header_.num_bytes / header_.shape[0];
  }

  int64_t num_rows() const { return header_.shape[0]; }
  std::vector<int64_t> row_shape() const {
    return {header_.shape.begin() + 1, header_.shape.end()};
  }
  NumberType type() const { return header_.type; }
  const std::filesystem::path& path() const { return file_->path(); }

  /// Returns a row in the file's own type.
  std::string_view row(int64_t index, std::string* storage) const {
    return file_->bytes(header_.offset + index * row_bytes_, row_bytes_, storage);
  }
  void expect(int64_t index) const {
    file_->expect(header_.offset + index * row_bytes_, row_bytes_);
  }
  template <typename To>
  std::string_view row_as(NumberType same, int64_t index, std::string* storage) const {
    if (header_.type == same) return row(index, storage);
    std::string kept;
    convert_as<To>(header_.type, row(index, &kept), storage);
    return *storage;
  }
  std::string_view floats(int64_t index, std::string* storage) const {
    return row_as<float>(NumberType::kF32, index, storage);
  }
  std::string_view whole_numbers(int64_t index, std::string* storage) const {
    return row_as<int64_t>(NumberType::kI64, index, storage);
  }
  int64_t whole_number(int64_t index) const {
    std::string storage;
    int64_t number = 0;
    std::memcpy(&number, whole_numbers(index, &storage).data(), sizeof number);
    return number;
  }

 private:
  std::shared_ptr<const ResidentFile> file_;
  ArrayHeader header_;
  int64_t row_bytes_ = 0;
};

/// True for [H, W] and for three axes.
bool is_pixel_shape(const std::vector<int64_t>& shape) {
  return shape.size() == 2 || shape.size() == 3;
}

/// Source of arrays: one for inputs and, unless for inference, one for targets.
class ArraySource final : public Source {
 public:
  ArraySource(ArrayFile inputs, std::optional<ArrayFile> targets, const ArrayOptions& options,
              Paths files)
      : inputs_(std::move(inputs)), targets_(std::move(targets)), files_(std::move(files)) {
    if (targets_ && inputs_.num_rows() != targets_->num_rows())
      refuse_file(targets_->path(), fmt::format("{} targets for {} inputs", targets_->num_rows(),
                                                inputs_.num_rows()));
    find_content(options.is_interleaved);
    if (targets_)
      find_targets(*targets_, options.num_classes);
    else
      spec_.targets = Targets::kNone;
  }

  int64_t num_records() const override { return inputs_.num_rows(); }
  void read(int64_t index, Record* record) const override {
    record->input = spec_.content == Content::kPixels ? inputs_.row(index, &record->input_storage)
                    : spec_.content == Content::kFloats
                        ? inputs_.floats(index, &record->input_storage)
                        : inputs_.whole_numbers(index, &record->input_storage);
    if (!targets_) return;
    if (spec_.targets == Targets::kLabels)
      record->label = targets_->whole_number(index);
    else
      record->target = spec_.targets == Targets::kNumbers
                           ? targets_->floats(index, &record->target_storage)
                           : targets_->whole_numbers(index, &record->target_storage);
  }
  void expect(int64_t index) const override { inputs_.expect(index); }
  std::string place_of(int64_t index) const override {
    return fmt::format("{}: row {}", inputs_.path().string(), index);
  }
  std::string place_of_target(int64_t index) const override {
    return targets_ ? fmt::format("{}: row {}", targets_->path().string(), index) : place_of(index);
  }
  std::string digest() const override { return digest_of_files(files_); }

 private:
  // The type decides: floats and bools are numbers, uint8 are pixels, other integers are tokens.
  void find_content(bool is_interleaved) {
    spec_.shape = inputs_.row_shape();
    const bool is_u8 = inputs_.type() == NumberType::kU8;
    const bool are_floats = is_float(inputs_.type()) || inputs_.type() == NumberType::kBool;
    spec_.content = are_floats ? Content::kFloats : is_u8 ? Content::kPixels : Content::kTokens;
    if (!is_u8) return;
    if (!is_pixel_shape(spec_.shape))
      refuse_file(
          inputs_.path(),
          fmt::format(
              "uint8 inputs are images of 2 or 3 axes, not [{}]; save other numbers as float32",
              fmt::join(spec_.shape, ", ")));
    // [H, W] is a grey image without an axis of channels.
    if (spec_.shape.size() == 2) {
      spec_.shape.insert(spec_.shape.begin(), 1);
    } else if (is_interleaved) {
      spec_.is_interleaved = true;
      spec_.shape = {spec_.shape[2], spec_.shape[0], spec_.shape[1]};
    }
    if (const int64_t channels = spec_.shape[0]; channels != 1 && channels != 3 && channels != 4)
      refuse_file(
          inputs_.path(),
          fmt::format(
              "images of {} channels; 1, 3 and 4 are supported (layout: hwc for [N, H, W, C])",
              channels));
  }

  // Floats are values, one integer per sample is a class, several are tokens.
  void find_targets(const ArrayFile& targets, int64_t num_classes) {
    const std::vector<int64_t> shape = targets.row_shape();
    if (is_float(targets.type())) {
      spec_.targets = Targets::kNumbers;
      spec_.num_classes = c10::multiply_integers(shape);
    } else if (shape.empty()) {
      spec_.num_classes = num_classes > 0 ? num_classes : largest_of(targets) + 1;
    } else {
      spec_.targets = Targets::kTokens;
      spec_.num_classes = num_classes;
      spec_.may_ignore = true;
      if (spec_.content != Content::kTokens || shape != spec_.shape || num_classes == 0)
        refuse_file(targets.path(),
                    "whole numbers with several axes are tokens: inputs must have the same shape, "
                    "and num_classes is the size of the vocabulary");
    }
  }

  static int64_t largest_of(const ArrayFile& targets) {
    int64_t largest = 0;
    for (int64_t i = 0; i < targets.num_rows(); ++i)
      // A label above a million is damage or no class number; it is reported when it is read.
      largest = std::max(largest, std::min(targets.whole_number(i), int64_t{1'000'000}));
    return largest;
  }

  ArrayFile inputs_;
  std::optional<ArrayFile> targets_;
  Paths files_;
};

/// Opens a .npy file.
ArrayFile npy_array(const std::filesystem::path& path) {
  auto file = std::make_shared<const ResidentFile>(path);
  std::string storage;
  const int64_t num_bytes = std::min(file->num_bytes(), kMaxNpyHeaderBytes);
  ArrayHeader header =
      parse_npy_header(file->bytes(0, num_bytes, &storage), file->num_bytes(), path.string());
  return {std::move(file), std::move(header)};
}

/// Opens a tensor of a safetensors file.
ArrayFile safetensors_array(const std::shared_ptr<const ResidentFile>& file,
                            const std::string& name) {
  std::string storage;
  const int64_t num_bytes = file->num_bytes();
  const std::string path = file->path().string();
  const int64_t end = safetensors_header_end(
      file->bytes(0, std::min(num_bytes, int64_t{8}), &storage), num_bytes, path);
  return {file, parse_safetensors_header(file->bytes(0, end, &storage), num_bytes, name, path)};
}

}  // namespace

std::unique_ptr<Source> open_npy(const std::filesystem::path& inputs,
                                 const std::filesystem::path& targets,
                                 const ArrayOptions& options) {
  if (targets.empty())
    return std::make_unique<ArraySource>(npy_array(inputs), std::nullopt, options, Paths{inputs});
  return std::make_unique<ArraySource>(npy_array(inputs), npy_array(targets), options,
                                       Paths{inputs, targets});
}

std::unique_ptr<Source> open_safetensors(const std::filesystem::path& file,
                                         const std::string& inputs, const std::string& targets,
                                         const ArrayOptions& options) {
  const auto opened = std::make_shared<const ResidentFile>(file);
  std::optional<ArrayFile> found;
  if (!targets.empty()) found = safetensors_array(opened, targets);
  return std::make_unique<ArraySource>(safetensors_array(opened, inputs), std::move(found), options,
                                       Paths{file});
}

}  // namespace lockstep::data
