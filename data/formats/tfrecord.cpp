// A TFRecord file is a sequence of records. Each has length (8 bytes), crc of the length (4), data,
// and crc of the data (4). All offsets are found once, when the files are opened.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/digest.h"
#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"
#include "data/formats/tf_example.pb.h"

namespace lockstep::data {
namespace {

constexpr int64_t kRecordHeader = 12, kRecordFooter = 4;

/// Reads a number from unaligned memory.
template <typename Number>
Number number_of(const char* bytes) {
  Number number = 0;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

/// True if the bytes have this masked crc.
bool has_crc(std::string_view bytes, const char* stored) {
  return masked_crc32c(crc32c(bytes)) == number_of<uint32_t>(stored);
}

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t all = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(all, size, &all)) return -1;
  return all;
}

using Kind = pb::Feature::KindCase;

/// Returns the name of a kind by its field number in data/formats/tf_example.proto; 0: not set.
const char* name_of_kind(Kind kind) {
  constexpr std::array kNames = {"nothing", "bytes", "floats", "whole numbers"};
  return kNames.at(static_cast<size_t>(kind));
}

/// Copies the values of a FloatList as little-endian float32.
void copy_floats(const pb::Feature& feature, std::string* bytes) {
  const auto& values = feature.float_list().value();
  bytes->assign(reinterpret_cast<const char*>(values.data()),
                static_cast<size_t>(values.size()) * sizeof(float));
}

/// Index of a file's records. Reads their lengths, which are in the 12 bytes before each.
class RecordIndex {
 public:
  explicit RecordIndex(const files::Reader& file) : file_(file) {}

  void append_to(std::vector<int64_t>* offsets) {
    for (int64_t at = 0; at < file_.num_bytes();) {
      offsets->push_back(at);
      at += kRecordHeader + length_at(at) + kRecordFooter;
    }
  }

 private:
  int64_t length_at(int64_t at) {
    const int64_t room = file_.num_bytes() - at - kRecordHeader - kRecordFooter;
    if (room < 0) refuse_at(at, "is truncated in the header of a record");
    const char* header = bytes_at(at);
    if (!has_crc({header, 8}, header + 8))
      refuse_at(at,
                "the checksum of a record's length is wrong: the file is damaged or not a TFRecord "
                "file (is it compressed?)");
    const auto length = number_of<uint64_t>(header);
    if (length > static_cast<uint64_t>(room))
      refuse_at(at, fmt::format("a record of {} bytes, {} are left: the file is truncated", length,
                                room));
    return static_cast<int64_t>(length);
  }

  /// Returns 12 bytes, from a piece of the file that small records share.
  const char* bytes_at(int64_t at) {
    const auto held = static_cast<int64_t>(piece_.size());
    if (at < piece_begin_ || at + kRecordHeader > piece_begin_ + held) {
      // Large records: read only the headers, not the data between them.
      const bool are_small = at - piece_begin_ < kPiece;
      piece_begin_ = at;
      piece_.resize(static_cast<size_t>(
          std::min(are_small ? kPiece : kRecordHeader, file_.num_bytes() - at)));
      file_.read_at(at, piece_);
    }
    return piece_.data() + (at - piece_begin_);
  }

  [[noreturn]] void refuse_at(int64_t at, const std::string& what) const {
    refuse_file(file_.path(), fmt::format("offset {}: {}", at, what));
  }

  static constexpr int64_t kPiece = int64_t{1} << 16;

  const files::Reader& file_;
  std::string piece_;
  int64_t piece_begin_ = 0;
};

/// Source of TFRecords.
class TfRecordSource final : public Source {
 public:
  TfRecordSource(const Paths& paths, const TfRecordOptions& options)
      : files_(paths), options_(options) {
    for (int64_t file = 0; file < files_.num_files(); ++file) {
      const std::shared_ptr<const files::Reader> reader = files_.open(file);
      RecordIndex(*reader).append_to(&offsets_);
      ends_.push_back(static_cast<int64_t>(offsets_.size()));
    }
    if (offsets_.empty()) refuse_file(paths.front(), "contains no record");
    // The first record gives the spec; all others must match it.
    Record record;
    use_example(0, &record, [&](pb::Example* example) { find_spec(example); });
  }

  int64_t num_records() const override { return ends_.back(); }
  void read(int64_t index, Record* record) const override {
    use_example(index, record, [&](pb::Example* example) {
      take_input(example, record);
      take_target(example, record);
    });
  }
  std::string place_of(int64_t index) const override {
    return fmt::format("{}: offset {}", files_.path(file_of(index)).string(),
                       offsets_[static_cast<size_t>(index)]);
  }
  std::string digest() const override { return digest_of_files(files_.paths()); }

 private:
  int64_t file_of(int64_t index) const {
    return std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
  }

  /// Returns the end of a record: the next one of its file, or the file's end.
  int64_t end_of(int64_t index, int64_t file, const files::Reader& reader) const {
    const bool is_last = index + 1 == ends_[static_cast<size_t>(file)];
    return is_last ? reader.num_bytes() : offsets_[static_cast<size_t>(index) + 1];
  }

  std::string_view read_record(int64_t index, Record* record) const {
    const int64_t file = file_of(index), begin = offsets_[static_cast<size_t>(index)];
    const std::shared_ptr<const files::Reader> reader = files_.open(file);
    std::string& bytes = record->input_storage;
    bytes.resize(static_cast<size_t>(end_of(index, file, *reader) - begin));
    reader->read_at(begin, bytes);
    const std::string_view data(bytes.data() + kRecordHeader,
                                bytes.size() - kRecordHeader - kRecordFooter);
    // The length is compared too: the file may have changed since it was indexed.
    if (number_of<uint64_t>(bytes.data()) != data.size() ||
        !has_crc(data, data.data() + data.size()))
      refuse_file(place_of(index), "the checksum of a record's data is wrong: the file is damaged");
    return data;
  }

  /// Reads a record and calls use(example). Errors get the record's place.
  template <typename Use>
  void use_example(int64_t index, Record* record, const Use& use) const {
    const std::string_view data = read_record(index, record);
    try {
      pb::Example example = parse_example(data);
      use(&example);
    } catch (const Error& fault) {
      const std::string text = fault.what();
      // Without the area, which refuse_file() adds again.
      refuse_file(place_of(index), text.substr(text.find("] ") + 2));
    }
  }

  static pb::Feature& feature(const std::string& name, pb::Example* example) {
    if (pb::Feature* const found = find_feature(name, example)) return *found;
    std::vector<std::string> names;
    for (const pb::Features::Entry& entry : example->features().feature())
      names.push_back(entry.key());
    throw Error(ExitCode::kBadData, "data",
                fmt::format("no feature '{}'{}; available: {}", name, did_you_mean(name, names),
                            fmt::join(names, ", ")));
  }

  [[noreturn]] static void refuse_kind(const std::string& name, Kind is, Kind wanted) {
    throw Error(ExitCode::kBadData, "data",
                fmt::format("the feature '{}' contains {}, not {}", name, name_of_kind(is),
                            name_of_kind(wanted)));
  }

  /// Returns the feature of this name, which must hold this kind.
  static pb::Feature& feature(const std::string& name, Kind wanted, pb::Example* example) {
    pb::Feature& found = feature(name, example);
    if (found.kind_case() != wanted) refuse_kind(name, found.kind_case(), wanted);
    return found;
  }

  void take_input(pb::Example* example, Record* record) const {
    // The message has its own copy of the record, whose storage is used again.
    std::string& input = record->input_storage;
    if (spec_.content == Content::kFloats)
      copy_floats(feature(options_.image_feature, Kind::kFloatList, example), &input);
    else
      input = only_bytes(&feature(options_.image_feature, Kind::kBytesList, example));
    record->input = input;
    if (spec_.content == Content::kFloats) require_size(input, 4);
    if (spec_.content == Content::kPixels) require_size(input, 1);
  }

  void require_size(std::string_view bytes, int64_t number_bytes) const {
    const int64_t wanted = product(spec_.shape) * number_bytes;
    if (static_cast<int64_t>(bytes.size()) != wanted)
      throw Error(
          ExitCode::kBadData, "data",
          fmt::format("the feature '{}' has {} bytes, not the {} of its shape [{}]",
                      options_.image_feature, bytes.size(), wanted, fmt::join(spec_.shape, ", ")));
  }

  void take_target(pb::Example* example, Record* record) const {
    if (spec_.targets == Targets::kLabels) {
      const auto& labels =
          feature(options_.label_feature, Kind::kInt64List, example).int64_list().value();
      if (labels.size() != 1) refuse_count(labels.size(), 1);
      record->label = labels[0];
      return;
    }
    const pb::Feature& numbers = feature(options_.label_feature, Kind::kFloatList, example);
    const int64_t count = numbers.float_list().value_size();
    if (count != spec_.num_classes) refuse_count(count, spec_.num_classes);
    copy_floats(numbers, &record->target_storage);
    record->target = record->target_storage;
  }

  [[noreturn]] void refuse_count(int64_t count, int64_t wanted) const {
    throw Error(ExitCode::kBadData, "data",
                fmt::format("the feature '{}' has {} numbers, not {}", options_.label_feature,
                            count, wanted));
  }

  void find_spec(pb::Example* example) {
    const pb::Feature& input = feature(options_.image_feature, example);
    spec_.shape = options_.shape;
    spec_.is_interleaved = options_.is_interleaved;
    if (input.has_int64_list())
      refuse_kind(options_.image_feature, Kind::kInt64List, Kind::kBytesList);
    if (input.has_float_list()) {
      spec_.content = Content::kFloats;
      if (spec_.shape.empty()) spec_.shape = {input.float_list().value_size()};
    } else if (!spec_.shape.empty()) {
      spec_.content = Content::kPixels;
      if (spec_.shape.size() != 3)
        throw Error(ExitCode::kConfig, "data",
                    "record_shape of raw pixels is channels, height and width");
    }
    const pb::Feature& target = feature(options_.label_feature, example);
    spec_.num_classes = options_.num_classes;
    if (target.has_bytes_list())
      refuse_kind(options_.label_feature, Kind::kBytesList, Kind::kInt64List);
    if (!target.has_float_list()) return;
    spec_.targets = Targets::kNumbers;
    spec_.num_classes = target.float_list().value_size();
  }

  FileSet files_;
  TfRecordOptions options_;
  std::vector<int64_t> offsets_;  // of all files
  std::vector<int64_t> ends_;     // records up to the end of each file
};

}  // namespace

std::unique_ptr<Source> open_tfrecord(const Paths& files, const TfRecordOptions& options) {
  return std::make_unique<TfRecordSource>(files, options);
}

}  // namespace lockstep::data
