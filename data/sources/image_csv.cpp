// CSV files with an image path and a class number per line.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files/files.h"
#include "base/nearest_word.h"
#include "base/yaml/config_reader.h"
#include "data/files/csv_text.h"
#include "data/files/refuse.h"
#include "data/sources/formats.h"
#include "data/sources/image_files.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMaxCsvBytes = int64_t{4} << 30;

/// Reader of one file's rows.
class ImageCsv {
 public:
  ImageCsv(const std::filesystem::path& csv, const CsvOptions& options)
      : path_(csv),
        options_(options),
        rows_(parse_csv(files::read(csv, kMaxCsvBytes), csv.string())) {}

  void read() {
    if (rows_.empty()) refuse_file(path_, "holds no line");
    find_columns();
    for (size_t i = has_header_ ? 1 : 0; i < rows_.size(); ++i) add(rows_[i]);
    if (images_.empty()) refuse_file(path_, "holds no image behind its header");
  }
  const Paths& images() const { return images_; }
  const std::vector<int64_t>& labels() const { return labels_; }

  Paths remote_images() {
    if (rows_.empty()) return {};
    find_columns();
    Paths images;
    for (size_t i = has_header_ ? 1 : 0; i < rows_.size(); ++i)
      // Rows that are too short are skipped here; read() refuses them with a message.
      if (image_at_ < rows_[i].fields.size() && files::is_remote(image_of(rows_[i])))
        images.push_back(image_of(rows_[i]));
    return images;
  }

 private:
  [[noreturn]] void refuse_row(const CsvRow& row, const std::string& what) const {
    refuse_file(fmt::format("{}:{}", path_.string(), row.line), what);
  }

  void find_columns() {
    const CsvRow& first = rows_.front();
    const bool names_columns = !options_.image_column.empty() || !options_.label_column.empty();
    // Without named columns, a first line whose second field is not a number is a header.
    has_header_ = names_columns || first.fields.size() < 2 || !parse_integer(first.fields[1]);
    if (!options_.image_column.empty()) image_at_ = column(options_.image_column);
    // By default, labels are in the second column, or in the first if the images are in the second.
    if (!options_.label_column.empty())
      label_at_ = column(options_.label_column);
    else if (image_at_ == 1)
      label_at_ = 0;
    if (std::max(image_at_, label_at_) >= first.fields.size())
      refuse_row(first, "has one column; a line is an image's path and its class number");
  }

  size_t column(const std::string& name) const {
    const std::vector<std::string>& names = rows_.front().fields;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      refuse_row(rows_.front(), fmt::format("no column '{}'{}; there are {}", name,
                                            did_you_mean(name, names), fmt::join(names, ", ")));
    return static_cast<size_t>(found - names.begin());
  }

  std::filesystem::path image_of(const CsvRow& row) const {
    const std::string& named = row.fields[image_at_];
    return files::is_remote(named) ? std::filesystem::path(named) : path_.parent_path() / named;
  }

  // A store answers from the facts that rank 0 has listed.
  static bool is_there(const std::filesystem::path& image) {
    files::FileStore* const store = files::store_of(image);
    return store == nullptr ? std::filesystem::exists(image)
                            : store->look_at(image.string()).has_value();
  }

  void add(const CsvRow& row) {
    const size_t needed = std::max(image_at_, label_at_) + 1;
    if (row.fields.size() < needed)
      refuse_row(row, fmt::format("has {} columns, {} are needed", row.fields.size(), needed));
    const std::optional<int64_t> label = parse_integer(row.fields[label_at_]);
    if (!label || *label < 0)
      refuse_row(row, fmt::format("the label '{}' is no class number", row.fields[label_at_]));
    if (options_.num_classes > 0 && *label >= options_.num_classes)
      refuse_row(row, fmt::format("label {} is out of range: num_classes is {}", *label,
                                  options_.num_classes));
    labels_.push_back(*label);
    images_.push_back(image_of(row));
    if (!is_there(images_.back()))
      throw Error(ExitCode::kInputMissing, "data",
                  fmt::format("{}:{}: {} is not there; paths are relative to the folder of the CSV "
                              "file",
                              path_.string(), row.line, images_.back().string()));
  }

  std::filesystem::path path_;
  const CsvOptions& options_;
  std::vector<CsvRow> rows_;
  bool has_header_ = false;
  size_t image_at_ = 0, label_at_ = 1;
  Paths images_;
  std::vector<int64_t> labels_;
};

/// Returns the common start of all paths up to a slash after the bucket; empty if there is none.
std::string shared_folder(const Paths& images) {
  if (images.empty()) return "";
  std::string shared = images.front().string();
  for (const std::filesystem::path& image : images) {
    const std::string& path = image.native();
    const auto ends = std::mismatch(shared.begin(), shared.end(), path.begin(), path.end());
    shared.erase(ends.first, shared.end());
  }
  // Up to the last slash, so that it is a folder and not a part of a name.
  shared.resize(shared.rfind('/') + 1);
  const size_t bucket = shared.find("://");
  const bool has_bucket =
      bucket != std::string::npos && shared.find('/', bucket + 3) != std::string::npos;
  return has_bucket ? shared : "";
}

}  // namespace

std::unique_ptr<Source> open_image_csv(const Paths& files, const CsvOptions& options) {
  Paths images;
  std::vector<int64_t> labels;
  for (const std::filesystem::path& file : files) {
    ImageCsv csv(file, options);
    csv.read();
    images.insert(images.end(), csv.images().begin(), csv.images().end());
    labels.insert(labels.end(), csv.labels().begin(), csv.labels().end());
  }
  const int64_t num_classes = options.num_classes > 0
                                  ? options.num_classes
                                  : *std::max_element(labels.begin(), labels.end()) + 1;
  return std::make_unique<ImageFiles>(std::move(images), std::move(labels), num_classes, files);
}

Paths look_at_remote_images(const Paths& csvs, const CsvOptions& options) {
  Paths images;
  for (const std::filesystem::path& file : csvs)
    for (std::filesystem::path& image : ImageCsv(file, options).remote_images())
      images.push_back(std::move(image));
  if (const std::string folder = shared_folder(images); !folder.empty())
    (void)files::store_of(folder)->list(folder);  // one request per thousand images, not one each
  std::erase_if(images, [](const std::filesystem::path& image) {
    return !files::store_of(image)->look_at(image.string());
  });
  return images;
}

}  // namespace lockstep::data
