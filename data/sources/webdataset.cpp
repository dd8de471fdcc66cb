#include <algorithm>

#include <fmt/format.h>

#include "base/yaml/config_reader.h"
#include "data/files/file_set.h"
#include "data/files/refuse.h"
#include "data/files/tar_members.h"
#include "data/sources/formats.h"
#include "data/sources/image_files.h"

namespace lockstep::data {
namespace {

/// NAME.jpg has the key NAME: up to the first point behind the last slash.
std::string key_of_member(const std::string& name) {
  const size_t slash = name.rfind('/');
  return name.substr(0, name.find('.', slash == std::string::npos ? 0 : slash + 1));
}

class WebDataset final : public Source {
 public:
  WebDataset(const Paths& paths, int64_t num_classes) : files_(paths) {
    for (int64_t file = 0; file < files_.num_files(); ++file) index_archive(file);
    if (records_.empty())
      refuse_file(paths.front(), "holds no samples; one is NAME.jpg (jpeg, png) and NAME.cls");
    spec_.num_classes = num_classes > 0 ? num_classes : largest_label_ + 1;
  }

  int64_t num_records() const override { return static_cast<int64_t>(records_.size()); }
  const SourceSpec& spec() const override { return spec_; }
  void read(int64_t index, Record* record) const override {
    const Place& place = records_[static_cast<size_t>(index)];
    record->input_storage.resize(static_cast<size_t>(place.num_bytes));
    files_.open(place.file)->read_at(place.offset, record->input_storage);
    record->input = record->input_storage;
    record->label = place.label;
  }
  std::string place_of(int64_t index) const override {
    const Place& place = records_[static_cast<size_t>(index)];
    return fmt::format("{}: offset {}", files_.path(place.file).string(), place.offset);
  }
  std::string digest() const override { return digest_of_files(files_.paths()); }

 private:
  struct Place {
    int64_t file = 0, offset = 0, num_bytes = 0, label = 0;
  };

  void index_archive(int64_t file) {
    const std::shared_ptr<const files::Reader> reader = files_.open(file);
    std::string block;
    const ReadArchive read = [&](int64_t offset, int64_t num_bytes) -> std::string_view {
      block.resize(static_cast<size_t>(num_bytes));
      reader->read_at(offset, block);
      return block;
    };
    const std::string name = reader->path().string();
    const std::vector<TarMember> members = list_tar(read, reader->num_bytes(), name);
    for (size_t first = 0; first < members.size();) {
      const std::string key = key_of_member(members[first].name);
      size_t end = first + 1;
      while (end < members.size() && key_of_member(members[end].name) == key) ++end;
      add_sample(file, {members.data() + first, end - first}, read);
      first = end;
    }
  }

  /// Members of one name. Those without image and label are something else.
  void add_sample(int64_t file, std::span<const TarMember> members, const ReadArchive& read) {
    const TarMember *image = nullptr, *label = nullptr;
    for (const TarMember& member : members) {
      if (is_image_name(member.name)) image = &member;
      if (member.name.ends_with(".cls")) label = &member;
    }
    if (image == nullptr && label == nullptr) return;
    const std::string where = fmt::format("{}: offset {}: {}", files_.path(file).string(),
                                          members[0].offset, members[0].name);
    if (image == nullptr || label == nullptr)
      refuse_file(where, image == nullptr ? "a label without an image" : "an image without a .cls");
    if (label->num_bytes > 32) refuse_file(where, "its .cls is no class number");
    std::string text(read(label->offset, label->num_bytes));
    text.erase(text.find_last_not_of(" \r\n") + 1);
    const std::optional<int64_t> number = parse_integer(text);
    if (!number || *number < 0)
      refuse_file(where, fmt::format("its .cls holds '{}', which is no class number", text));
    largest_label_ = std::max(largest_label_, *number);
    records_.push_back({file, image->offset, image->num_bytes, *number});
  }

  FileSet files_;
  std::vector<Place> records_;
  int64_t largest_label_ = 0;
  SourceSpec spec_;
};

}  // namespace

std::unique_ptr<Source> open_webdataset(const Paths& files, int64_t num_classes) {
  return std::make_unique<WebDataset>(files, num_classes);
}

}  // namespace lockstep::data
