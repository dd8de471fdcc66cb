// WebDataset archives: members are indexed once. Adjacent members with the same name before the
// first point are one sample.
#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>

#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"

namespace lockstep::data {
namespace {

/// Member by WebDataset's convention: `dir/000.seg.png` is the field `seg.png` of the sample
/// `dir/000`. Field names are compared in lower case.
struct Field {
  std::string sample, name;
  const TarMember* member = nullptr;
};

/// Returns the field; nullopt for members outside samples. These are hidden ones, names without a
/// point, and those below a folder such as `__meta__`.
std::optional<Field> field_of(const TarMember& member) {
  const std::string& path = member.name;
  const std::string_view top = std::string_view(path).substr(0, path.find('/'));
  if (top.size() >= 4 && top.starts_with("__") && top.ends_with("__")) return std::nullopt;
  const size_t begin = path.rfind('/') + 1;  // 0 without a slash
  const size_t point = path.find('.', begin);
  if (point == std::string::npos || point == begin) return std::nullopt;
  Field field{path.substr(0, point), path.substr(point + 1), &member};
  std::transform(field.name.begin(), field.name.end(), field.name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return field;
}

bool is_image_field(const std::string& name) {
  return name == "jpg" || name == "jpeg" || name == "png";
}

/// Source of WebDataset samples; only their positions and labels are kept in memory.
class WebDataset final : public Source {
 public:
  WebDataset(const Paths& paths, int64_t num_classes) : files_(paths) {
    for (int64_t file = 0; file < files_.num_files(); ++file) index_archive(file);
    if (records_.empty())
      refuse_file(paths.front(),
                  "contains no samples; a sample is NAME.jpg (jpeg, png) and NAME.cls");
    spec_.num_classes = num_classes > 0 ? num_classes : largest_label_ + 1;
  }

  int64_t num_records() const override { return static_cast<int64_t>(records_.size()); }
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
    std::vector<Field> fields;
    for (const TarMember& member : members) {
      std::optional<Field> field = field_of(member);
      if (!field) continue;
      // A new name ends the sample before.
      if (!fields.empty() && fields.front().sample != field->sample) {
        add_sample(file, fields, read);
        fields.clear();
      }
      fields.push_back(*std::move(field));
    }
    if (!fields.empty()) add_sample(file, fields, read);
  }

  [[noreturn]] void refuse_member(int64_t file, const TarMember& member,
                                  const std::string& what) const {
    refuse_file(
        fmt::format("{}: offset {}: {}", files_.path(file).string(), member.offset, member.name),
        what);
  }

  /// Returns the only field that `is_wanted`; null if there is none.
  const TarMember* only(int64_t file, const std::vector<Field>& fields, const char* what,
                        bool (*is_wanted)(const std::string& field)) const {
    const TarMember* found = nullptr;
    for (const Field& field : fields) {
      if (!is_wanted(field.name)) continue;
      if (found != nullptr)
        refuse_member(file, *field.member,
                      fmt::format("the sample '{}' has another {} at offset {}: {}", field.sample,
                                  what, found->offset, found->name));
      found = field.member;
    }
    return found;
  }

  /// Skips a sample without image and label. Refuses it if the last ending of a name shows that it
  /// was meant as one.
  void pass_over(int64_t file, const std::vector<Field>& fields) const {
    for (const Field& field : fields)
      if (is_image_name(field.member->name) || field.name.ends_with(".cls"))
        refuse_member(file, *field.member,
                      fmt::format("is the field '{0}' of the sample '{1}', which has no image and "
                                  "no label: a field is the part of a name after the first point; "
                                  "name the files '{1}.png' and '{1}.cls', without further points",
                                  field.name, field.sample));
  }

  /// Adds a sample from its fields.
  void add_sample(int64_t file, const std::vector<Field>& fields, const ReadArchive& read) {
    const TarMember* const image = only(file, fields, "image", is_image_field);
    const TarMember* const label =
        only(file, fields, "label", [](const std::string& name) { return name == "cls"; });
    if (image == nullptr && label == nullptr) return pass_over(file, fields);
    if (image == nullptr) refuse_member(file, *label, "a label without a .jpg, .jpeg or .png");
    if (label == nullptr) refuse_member(file, *image, "an image without a .cls");
    const int64_t number = class_of(file, *label, read);
    largest_label_ = std::max(largest_label_, number);
    records_.push_back({file, image->offset, image->num_bytes, number});
  }

  // A class number has few digits; a larger member is not one.
  int64_t class_of(int64_t file, const TarMember& label, const ReadArchive& read) const {
    if (label.num_bytes > 32) refuse_member(file, label, "is not a class number");
    const std::string text(trimmed(read(label.offset, label.num_bytes)));
    const std::optional<int64_t> number = parse_integer(text);
    if (!number || *number < 0)
      refuse_member(file, label, fmt::format("contains '{}', which is not a class number", text));
    return *number;
  }

  FileSet files_;
  std::vector<Place> records_;
  int64_t largest_label_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_webdataset(const Paths& files, int64_t num_classes) {
  return std::make_unique<WebDataset>(files, num_classes);
}

}  // namespace lockstep::data
