// IDX files, as for MNIST, and CIFAR's binary files.
#include <algorithm>

#include <fmt/format.h>

#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"

namespace lockstep::data {
namespace {

/// Returns a file's header after checking the file's size against it.
IdxHeader checked_header(const ResidentFile& file) {
  std::string storage;
  const int64_t num_bytes = std::min(file.num_bytes(), kMaxIdxHeaderBytes);
  const IdxHeader header =
      parse_idx_header(file.bytes(0, num_bytes, &storage), file.num_bytes(), file.path().string());
  if (header.sizes.empty()) refuse_file(file.path(), "has no axis");
  return header;
}

/// Source of IDX images and labels. All labels are read when it is opened.
class IdxSource final : public Source {
 public:
  IdxSource(const std::filesystem::path& images, const std::filesystem::path& labels)
      : images_(images), labels_(labels) {
    const IdxHeader header = checked_header(images_), label_header = checked_header(labels_);
    if (header.sizes.size() != 3 && header.sizes.size() != 4)
      refuse_file(images, fmt::format("has {} axes; images have three or four: samples, channels "
                                      "(or none), height, width",
                                      header.sizes.size()));
    if (label_header.sizes.size() != 1) refuse_file(labels, "labels have one axis");
    num_records_ = header.sizes[0];
    if (label_header.sizes[0] != num_records_)
      refuse_file(labels, fmt::format("has {} labels, {} has {} images", label_header.sizes[0],
                                      images.string(), num_records_));
    spec_ = {.content = Content::kPixels, .shape = {header.sizes.begin() + 1, header.sizes.end()}};
    // Grey images [N, H, W] have no axis of channels.
    if (spec_.shape.size() == 2) spec_.shape.insert(spec_.shape.begin(), 1);
    images_begin_ = header.num_bytes;
    image_bytes_ = spec_.shape[0] * spec_.shape[1] * spec_.shape[2];
    values_ = labels_.bytes(label_header.num_bytes, num_records_, &label_storage_);
    uint8_t largest = 0;
    for (const char label : values_) largest = std::max(largest, static_cast<uint8_t>(label));
    spec_.num_classes = largest + 1;
  }

  int64_t num_records() const override { return num_records_; }
  void read(int64_t index, Record* record) const override {
    record->input =
        images_.bytes(images_begin_ + index * image_bytes_, image_bytes_, &record->input_storage);
    record->label = static_cast<uint8_t>(values_[static_cast<size_t>(index)]);
  }
  void expect(int64_t index) const override {
    images_.expect(images_begin_ + index * image_bytes_, image_bytes_);
  }
  std::string place_of(int64_t index) const override {
    return fmt::format("{}: image {}", images_.path().string(), index);
  }
  std::string digest() const override { return digest_of_files({images_.path(), labels_.path()}); }

 private:
  ResidentFile images_, labels_;
  std::string label_storage_;
  std::string_view values_;
  int64_t num_records_ = 0, images_begin_ = 0, image_bytes_ = 0;
};

}  // namespace

// MNIST's files are train-images-idx3-ubyte and train-labels-idx1-ubyte.
std::filesystem::path idx_labels_beside(const std::filesystem::path& images) {
  std::string name = images.filename().string();
  const auto replace = [&name](std::string_view from, std::string_view to) {
    if (const size_t at = name.rfind(from); at != std::string::npos)
      name.replace(at, from.size(), to);
  };
  replace("images", "labels");
  replace("idx3", "idx1");
  if (name == images.filename().string())
    throw Error(ExitCode::kConfig, "data",
                images.string() + ": its labels are unknown; give `targets`");
  return images.parent_path() / name;
}

std::unique_ptr<Source> open_idx(const std::filesystem::path& images,
                                 const std::filesystem::path& labels) {
  return std::make_unique<IdxSource>(images, labels.empty() ? idx_labels_beside(images) : labels);
}

// CIFAR's binary files: records of a label and 3 x 32 x 32 bytes, without a header.

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
        refuse_file(path,
                    fmt::format("has {} bytes, not a multiple of the {} of a record of CIFAR-{}",
                                num_bytes, record_bytes(), num_classes));
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + num_bytes / record_bytes());
    }
  }

  int64_t num_records() const override { return ends_.back(); }
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
  std::vector<std::unique_ptr<ResidentFile>> files_;
  std::vector<int64_t> ends_;  // records up to the end of each file
};

}  // namespace

std::unique_ptr<Source> open_cifar(const Paths& files, int64_t num_classes) {
  return std::make_unique<CifarSource>(files, num_classes);
}

}  // namespace lockstep::data
