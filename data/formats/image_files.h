#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/formats/file_set.h"
#include "data/formats/formats.h"

namespace lockstep::data {

/// Images with one file each, with or without class numbers (empty `labels`). `lists`: files that
/// named the images, for the digest.
class ImageFiles : public Source {
 public:
  ImageFiles(std::vector<std::filesystem::path> images, std::vector<int64_t> labels,
             int64_t num_classes, std::vector<std::filesystem::path> lists = {})
      : images_(std::move(images)), labels_(std::move(labels)), lists_(std::move(lists)) {
    spec_.num_classes = num_classes;
    if (labels_.empty()) spec_.targets = Targets::kNone;
  }

  /// Sets the names by class number.
  void set_class_names(std::vector<std::string> names) { spec_.class_names = std::move(names); }

  int64_t num_records() const override { return images_.num_files(); }
  const SourceSpec& spec() const override { return spec_; }
  void read(int64_t index, Record* record) const override;
  std::string place_of(int64_t index) const override { return images_.path(index).string(); }
  std::string digest() const override;

 private:
  FileSet images_;
  std::vector<int64_t> labels_;
  std::vector<std::filesystem::path> lists_;
  SourceSpec spec_;
};

/// True for an image's ending: .jpg, .jpeg, .png, in any case.
bool is_image_name(const std::filesystem::path& path);

}  // namespace lockstep::data
