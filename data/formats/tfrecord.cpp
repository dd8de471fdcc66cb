// A TFRecord file is a sequence of records. Each has length (8 bytes), crc of the length (4), data,
// and crc of the data (4). All offsets are found once, when the files are opened.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/digest.h"
#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"

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

const char* name_of_kind(FeatureKind kind) {
  switch (kind) {
    case FeatureKind::kBytes:
      return "bytes";
    case FeatureKind::kFloats:
      return "floats";
    case FeatureKind::kInts:
      return "whole numbers";
    case FeatureKind::kNone:
      break;
  }
  return "nothing";
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
    if (room < 0) refuse_at(at, "is cut in the header of a record");
    const char* header = bytes_at(at);
    if (!has_crc({header, 8}, header + 8))
      refuse_at(at,
                "the checksum of a record's length is wrong: the file is damaged or no TFRecord "
                "file (is it compressed?)");
    const auto length = number_of<uint64_t>(header);
    if (length > static_cast<uint64_t>(room))
      refuse_at(at,
                fmt::format("a record of {} bytes, {} are left: the file is cut", length, room));
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
    if (offsets_.empty()) refuse_file(paths.front(), "holds no record");
    look_at_first();
  }

  int64_t num_records() const override { return ends_.back(); }
  const SourceSpec& spec() const override { return spec_; }
  void read(int64_t index, Record* record) const override {
    const std::string_view example = read_example(index, record);
    try {
      take_input(example, record);
      take_target(example, record);
    } catch (const Error& fault) {
      const std::string text = fault.what();
      refuse_file(place_of(index), text.substr(text.find("] ") + 2));
    }
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

  std::string_view read_example(int64_t index, Record* record) const {
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

  FeatureView feature(std::string_view example, const std::string& name) const {
    const FeatureView view = find_feature(example, name);
    if (view.kind != FeatureKind::kNone) return view;
    const std::vector<std::string> names = feature_names(example);
    throw Error(ExitCode::kBadData, "data",
                fmt::format("no feature '{}'{}; there are {}", name, did_you_mean(name, names),
                            fmt::join(names, ", ")));
  }

  [[noreturn]] static void refuse_kind(const std::string& name, FeatureKind is,
                                       FeatureKind wanted) {
    throw Error(ExitCode::kBadData, "data",
                fmt::format("the feature '{}' holds {}, not {}", name, name_of_kind(is),
                            name_of_kind(wanted)));
  }

  void take_input(std::string_view example, Record* record) const {
    const FeatureView view = feature(example, options_.image_feature);
    const FeatureKind wanted =
        spec_.content == Content::kFloats ? FeatureKind::kFloats : FeatureKind::kBytes;
    if (view.kind != wanted) refuse_kind(options_.image_feature, view.kind, wanted);
    if (wanted == FeatureKind::kBytes) {
      record->input = only_bytes(view);
      if (spec_.content == Content::kPixels) require_size(record->input, 1);
      return;
    }
    // Copied, because the list may be unpacked and its bytes may be unaligned.
    std::string floats;
    append_floats(view, &floats);
    require_size(floats, 4);
    // The example is in input_storage and still needed for the target. So the floats go to
    // target_storage.
    record->target_storage = std::move(floats);
    record->input = record->target_storage;
  }

  void require_size(std::string_view bytes, int64_t number_bytes) const {
    const int64_t wanted = product(spec_.shape) * number_bytes;
    if (static_cast<int64_t>(bytes.size()) != wanted)
      throw Error(
          ExitCode::kBadData, "data",
          fmt::format("the feature '{}' has {} bytes, not the {} of its shape [{}]",
                      options_.image_feature, bytes.size(), wanted, fmt::join(spec_.shape, ", ")));
  }

  void take_target(std::string_view example, Record* record) const {
    const FeatureView view = feature(example, options_.label_feature);
    if (spec_.targets == Targets::kLabels) {
      if (view.kind != FeatureKind::kInts)
        refuse_kind(options_.label_feature, view.kind, FeatureKind::kInts);
      thread_local std::vector<int64_t> labels;
      labels.clear();
      append_ints(view, &labels);
      if (labels.size() != 1) refuse_count(labels.size(), 1);
      record->label = labels[0];
      return;
    }
    if (view.kind != FeatureKind::kFloats)
      refuse_kind(options_.label_feature, view.kind, FeatureKind::kFloats);
    std::string numbers;
    append_floats(view, &numbers);
    if (static_cast<int64_t>(numbers.size()) != 4 * spec_.num_classes)
      refuse_count(numbers.size() / 4, static_cast<size_t>(spec_.num_classes));
    if (spec_.content != Content::kFloats) {
      record->target_storage = std::move(numbers);
      record->target = record->target_storage;
      return;
    }
    // The input is in target_storage too. Appending may move it, so both views are set again.
    const size_t input_bytes = record->target_storage.size();
    record->target_storage += numbers;
    record->input = std::string_view(record->target_storage).substr(0, input_bytes);
    record->target = std::string_view(record->target_storage).substr(input_bytes);
  }

  [[noreturn]] void refuse_count(size_t count, size_t wanted) const {
    throw Error(ExitCode::kBadData, "data",
                fmt::format("the feature '{}' holds {} numbers, not {}", options_.label_feature,
                            count, wanted));
  }

  /// Determines the spec by the first record; all others must match it.
  void look_at_first() {
    Record record;
    const std::string_view example = read_example(0, &record);
    try {
      find_spec(example);
    } catch (const Error& fault) {
      const std::string text = fault.what();
      // Without the area, which refuse_file() adds again.
      refuse_file(place_of(0), text.substr(text.find("] ") + 2));
    }
  }

  void find_spec(std::string_view example) {
    const FeatureView input = feature(example, options_.image_feature);
    spec_.shape = options_.shape;
    spec_.is_interleaved = options_.is_interleaved;
    if (input.kind == FeatureKind::kInts)
      refuse_kind(options_.image_feature, input.kind, FeatureKind::kBytes);
    if (input.kind == FeatureKind::kFloats) {
      spec_.content = Content::kFloats;
      std::string floats;
      append_floats(input, &floats);
      if (spec_.shape.empty()) spec_.shape = {static_cast<int64_t>(floats.size() / 4)};
    } else if (!spec_.shape.empty()) {
      spec_.content = Content::kPixels;
      if (spec_.shape.size() != 3)
        throw Error(ExitCode::kConfig, "data",
                    "record_shape of raw pixels is channels, height and width");
    }
    const FeatureView target = feature(example, options_.label_feature);
    spec_.num_classes = options_.num_classes;
    if (target.kind == FeatureKind::kBytes)
      refuse_kind(options_.label_feature, target.kind, FeatureKind::kInts);
    if (target.kind != FeatureKind::kFloats) return;
    std::string numbers;
    append_floats(target, &numbers);
    spec_.targets = Targets::kNumbers;
    spec_.num_classes = static_cast<int64_t>(numbers.size() / 4);
  }

  FileSet files_;
  TfRecordOptions options_;
  SourceSpec spec_;
  std::vector<int64_t> offsets_;  // of all files
  std::vector<int64_t> ends_;     // records up to the end of each file
};

}  // namespace

std::unique_ptr<Source> open_tfrecord(const Paths& files, const TfRecordOptions& options) {
  return std::make_unique<TfRecordSource>(files, options);
}

}  // namespace lockstep::data
