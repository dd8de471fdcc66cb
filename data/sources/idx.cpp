#include <algorithm>

#include <fmt/format.h>

#include "data/files/file_set.h"
#include "data/files/idx_header.h"
#include "data/files/refuse.h"
#include "data/files/resident_file.h"
#include "data/sources/formats.h"

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
      refuse_file(labels, fmt::format("holds {} labels, {} holds {} images", label_header.sizes[0],
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
  const SourceSpec& spec() const override { return spec_; }
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
  SourceSpec spec_;
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
                images.string() + ": nothing says where its labels are; give `targets`");
  return images.parent_path() / name;
}

std::unique_ptr<Source> open_idx(const std::filesystem::path& images,
                                 const std::filesystem::path& labels) {
  return std::make_unique<IdxSource>(images, labels.empty() ? idx_labels_beside(images) : labels);
}

}  // namespace lockstep::data
