// Images with one file each: folders, and CSV files that name them.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"

namespace lockstep::data {
namespace {

/// Images with one file each, with or without class numbers (empty `labels`). `lists`: files that
/// named the images, for the digest.
class ImageFiles final : public Source {
 public:
  ImageFiles(Paths images, std::vector<int64_t> labels, int64_t num_classes,
             std::vector<std::string> class_names = {}, Paths lists = {})
      : images_(std::move(images)), labels_(std::move(labels)), lists_(std::move(lists)) {
    spec_.num_classes = num_classes;
    spec_.class_names = std::move(class_names);
    if (labels_.empty()) spec_.targets = Targets::kNone;
  }

  int64_t num_records() const override { return images_.num_files(); }
  void read(int64_t index, Record* record) const override {
    const files::Reader reader(images_.path(index));
    record->input_storage.resize(static_cast<size_t>(reader.num_bytes()));
    reader.read_at(0, record->input_storage);
    record->input = record->input_storage;
    if (!labels_.empty()) record->label = labels_[static_cast<size_t>(index)];
  }
  std::string place_of(int64_t index) const override { return images_.path(index).string(); }
  std::string digest() const override {
    Paths all = images_.paths();
    all.insert(all.end(), lists_.begin(), lists_.end());
    Sha256 sum;
    sum.add(digest_of_files(all));
    sum.add({reinterpret_cast<const char*>(labels_.data()), labels_.size() * sizeof(int64_t)});
    return sum.hex();
  }

 private:
  FileSet images_;
  std::vector<int64_t> labels_;
  Paths lists_;
};

// Image folders: a folder per class gives the labels, or one folder of images without labels.

constexpr size_t kMaxNames = 20;  // in a list of a message

/// Returns, for instance, "4 .bmp, 1 without an extension".
std::string text_of(const EndingCounts& counts) {
  std::vector<std::string> texts;
  for (const auto& [ending, count] : counts)
    texts.push_back(fmt::format("{} {}", count, ending.empty() ? "without an extension" : ending));
  return fmt::format("{}", fmt::join(texts, ", "));
}

[[noreturn]] void refuse_empty(const std::string& folder, const Subfolder& of_class) {
  throw Error(ExitCode::kInputMissing, "data",
              fmt::format("{}: the class '{}' has no .jpg, .jpeg or .png file, but {}; convert its "
                          "images, or remove the folder",
                          folder, of_class.name,
                          of_class.others.empty() ? "is empty" : text_of(of_class.others)));
}

/// Logs how many images are left out because their format is unsupported.
void warn_of_other_images(const std::string& path, const EndingCounts& others) {
  EndingCounts images;
  for (const char* ending : {".avif", ".bmp", ".gif", ".heic", ".jfif", ".jp2", ".jpe", ".pgm",
                             ".ppm", ".tif", ".tiff", ".webp"})
    if (const auto found = others.find(ending); found != others.end()) images.insert(*found);
  if (!images.empty())
    log::warning(
        "data",
        fmt::format(
            "{}: skipped images: {}; only .jpg, .jpeg and .png files are read: convert the others",
            path, text_of(images)));
}

/// Returns the class numbers of the folders `own` in a network that was trained with the classes
/// `trained`. Unknown names are added to `unknown`.
std::vector<int64_t> numbers_among(const std::vector<std::string>& trained,
                                   const std::vector<std::string>& own,
                                   std::vector<std::string>* unknown) {
  std::vector<int64_t> numbers;
  for (const std::string& name : own) {
    const auto found = std::find(trained.begin(), trained.end(), name);
    if (found == trained.end()) unknown->push_back(name);
    numbers.push_back(found - trained.begin());
  }
  return numbers;
}

/// Returns the path of a class's first image.
const std::string& first_of(const std::string& name, const FoundFiles& found) {
  const auto place = std::find(found.class_names.begin(), found.class_names.end(), name);
  const int64_t label = place - found.class_names.begin();
  const auto first = std::find(found.labels.begin(), found.labels.end(), label);
  return found.files[static_cast<size_t>(first - found.labels.begin())].path;
}

[[noreturn]] void refuse_unknown(const std::string& path, const std::vector<std::string>& unknown,
                                 const std::vector<std::string>& trained) {
  throw Error(ExitCode::kConfig, "data",
              fmt::format("{}: contains folders of the classes {}; data.train has the classes {}: "
                          "rename the folders, or remove them",
                          path, first_few(unknown, kMaxNames), first_few(trained, kMaxNames)));
}

}  // namespace

FoundFiles find_class_folder(const std::string& folder, bool may_lack_targets) {
  require_folder(folder);
  FoundFiles found;
  EndingCounts others;
  for (const Subfolder& of_class : files_by_folder(folder, is_image_name)) {
    if (of_class.files.empty() && !may_lack_targets) refuse_empty(folder, of_class);
    for (const std::filesystem::path& image : of_class.files)
      found.files.push_back(found_file(image));
    for (const auto& [ending, count] : of_class.others) others[ending] += count;
    const auto label = static_cast<int64_t>(found.class_names.size());
    found.labels.insert(found.labels.end(), of_class.files.size(), label);
    found.class_names.push_back(of_class.name);
  }
  if (found.files.empty())
    throw Error(ExitCode::kInputMissing, "data",
                folder +
                    ": contains no images; it must be a folder with a folder for each class, and "
                    ".jpg, .jpeg or .png files in those");
  warn_of_other_images(folder, others);
  return found;
}

std::unique_ptr<Source> open_class_folder(const FoundFiles& found, const ClassOptions& options) {
  const std::vector<std::string>& trained = options.trained_names;
  // With the classes of a trained network, the folders take that network's numbers.
  const std::vector<std::string>& names = trained.empty() ? found.class_names : trained;
  std::vector<std::string> unknown;
  const std::vector<int64_t> numbers = numbers_among(names, found.class_names, &unknown);
  if (!unknown.empty() && options.may_lack_targets) return open_images(found);
  if (!unknown.empty()) refuse_unknown(first_of(unknown.front(), found), unknown, trained);
  std::vector<int64_t> labels = found.labels;
  for (int64_t& label : labels) label = numbers[static_cast<size_t>(label)];
  const auto num_classes = std::max(static_cast<int64_t>(names.size()), options.num_trained);
  return std::make_unique<ImageFiles>(found.paths(), std::move(labels), num_classes, names);
}

FoundFiles find_images(const std::string& path) {
  FoundFiles found;
  EndingCounts others;
  for (const std::filesystem::path& file : expand_files(path)) {
    if (is_image_name(file))
      found.files.push_back(found_file(file));
    else
      ++others[lower_ending(file)];
  }
  if (found.files.empty())
    throw Error(ExitCode::kInputMissing, "data", path + ": contains no .jpg, .jpeg or .png file");
  warn_of_other_images(path, others);
  return found;
}

std::unique_ptr<Source> open_images(const FoundFiles& found) {
  return std::make_unique<ImageFiles>(found.paths(), std::vector<int64_t>(), 0);
}

// CSV files with an image path and a class number per line.

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
    if (rows_.empty()) refuse_file(path_, "contains no line");
    find_columns();
    for (size_t i = has_header_ ? 1 : 0; i < rows_.size(); ++i) add(rows_[i]);
    if (images_.empty()) refuse_file(path_, "contains no image after its header");
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
      refuse_row(rows_.front(), fmt::format("no column '{}'{}; available: {}", name,
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
      refuse_row(row, fmt::format("the label '{}' is not a class number", row.fields[label_at_]));
    if (options_.num_classes > 0 && *label >= options_.num_classes)
      refuse_row(row, fmt::format("label {} is out of range: num_classes is {}", *label,
                                  options_.num_classes));
    labels_.push_back(*label);
    images_.push_back(image_of(row));
    if (!is_there(images_.back()))
      throw Error(
          ExitCode::kInputMissing, "data",
          fmt::format("{}:{}: {} does not exist; paths are relative to the folder of the CSV file",
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
  return std::make_unique<ImageFiles>(std::move(images), std::move(labels), num_classes,
                                      std::vector<std::string>(), files);
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
