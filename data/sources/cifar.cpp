// CIFAR's binary files: records of a label and 3 x 32 x 32 bytes, without a header.
#include <algorithm>

#include <fmt/format.h>

#include "data/files/file_set.h"
#include "data/files/refuse.h"
#include "data/files/resident_file.h"
#include "data/sources/formats.h"

namespace lockstep::data {
namespace {

constexpr int64_t kCifarPixels = 3 * 32 * 32;

/// Source of CIFAR's records.
class CifarSource final : public Source {
 public:
  CifarSource(const Paths& paths, int64_t num_classes)
      : paths_(paths), label_bytes_(num_classes == 100 ? 2 : 1) {
    spec_ = {.content = Content::kPixels, .shape = {3, 32, 32}, .num_classes = num_classes};
    for (const std::filesystem::path& path : paths) {
      files_.push_back(std::make_unique<ResidentFile>(path));
      const int64_t num_bytes = files_.back()->num_bytes();
      if (num_bytes == 0 || num_bytes % record_bytes() != 0)
        refuse_file(path, fmt::format("has {} bytes, no multiple of the {} of a record of CIFAR-{}",
                                      num_bytes, record_bytes(), num_classes));
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + num_bytes / record_bytes());
    }
  }

  int64_t num_records() const override { return ends_.back(); }
  const SourceSpec& spec() const override { return spec_; }
  void read(int64_t index, Record* record) const override {
    const auto [file, row] = locate(index);
    const std::string_view bytes =
        files_[file]->bytes(row * record_bytes(), record_bytes(), &record->input_storage);
    // CIFAR-100 has two labels; the last byte before the pixels is the fine one.
    record->label = static_cast<uint8_t>(bytes[static_cast<size_t>(label_bytes_ - 1)]);
    record->input = bytes.substr(static_cast<size_t>(label_bytes_));
  }
  void expect(int64_t index) const override {
    const auto [file, row] = locate(index);
    files_[file]->expect(row * record_bytes(), record_bytes());
  }
  std::string place_of(int64_t index) const override {
    const auto [file, row] = locate(index);
    return fmt::format("{}: offset {}", paths_[file].string(), row * record_bytes());
  }
  std::string digest() const override { return digest_of_files(paths_); }

 private:
  int64_t record_bytes() const { return label_bytes_ + kCifarPixels; }

  struct Place {
    size_t file;
    int64_t row;
  };
  Place locate(int64_t index) const {
    const auto file = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    return {static_cast<size_t>(file),
            index - (file == 0 ? 0 : ends_[static_cast<size_t>(file) - 1])};
  }

  Paths paths_;
  int64_t label_bytes_;
  SourceSpec spec_;
  std::vector<std::unique_ptr<ResidentFile>> files_;
  std::vector<int64_t> ends_;  // records up to the end of each file
};

}  // namespace

std::unique_ptr<Source> open_cifar(const Paths& files, int64_t num_classes) {
  return std::make_unique<CifarSource>(files, num_classes);
}

}  // namespace lockstep::data
