// Rows `files` and one for each format of the table of data sets: options, listing, opening.
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/yaml/yaml_document.h"
#include "data/dataset_table.h"
#include "data/files_dataset.h"
#include "data/formats/file_list.h"
#include "data/formats/formats.h"

namespace lockstep::data {
namespace {

/// Keys of data sets that are made of files.
struct FilesOptions {
  std::string format;  ///< name of a format's row; `files`: detected from the content
  std::string path;    ///< a file, a folder or a pattern
  std::string inputs, targets;
  std::string targets_file;  ///< path of `targets`, if that names a file
  CsvOptions csv;
  TfRecordOptions tfrecord;
  TokenOptions tokens;
  bool is_interleaved = false;
  FeedOptions feed;
  SampleSpec trained;  ///< as DatasetInputs::trained
};

/// Reader of one format's keys; `files` has the keys of all formats.
class FilesReader {
 public:
  FilesReader(std::string format, ConfigReader* in, DatasetUse use) : in_(*in), use_(use) {
    options_.format = std::move(format);
    options_.feed.may_lack_targets = use == DatasetUse::kInference;
  }

  FilesOptions read() {
    in_.require("path");
    in_.read("path", &options_.path,
             "files: file, folder, pattern such as data/*.tfrecord, or s3://BUCKET/... or "
             "gs://BUCKET/...");
    if (options_.path.empty())
      in_.fault("path",
                fmt::format("'{}.path' is empty: name a file, a folder, or a pattern", in_.path()));
    options_.path = place_of(options_.path);
    read_places();
    read_shapes();
    if (is({"tokens"})) read_tokens();
    if (!is_only("tokens")) {
      read_classes();
      read_images();
      // Only training data is augmented, so the section is unknown elsewhere.
      if (use_ == DatasetUse::kTraining) read_augment(in_.section("augment"));
    }
    return std::move(options_);
  }

 private:
  bool is_only(const char* format) const { return options_.format == format; }
  // Type `files` finds out the format later, so it has the keys of all formats.
  bool is(std::initializer_list<std::string_view> formats) const {
    return options_.format == "files" ||
           std::find(formats.begin(), formats.end(), options_.format) != formats.end();
  }

  std::string place_of(const std::string& path) const {
    return path_beside(in_.document(), path).string();
  }

  void read_places() {
    if (is({"idx", "npy", "safetensors"}))
      in_.read("targets", &options_.targets,
               "idx, npy: file of labels or targets; safetensors: their tensor");
    options_.targets_file = place_of(options_.targets);
    if (is({"safetensors"})) in_.read("inputs", &options_.inputs, "safetensors: tensor of inputs");
    if (is({"image_csv"})) {
      in_.read("image_column", &options_.csv.image_column,
               "image_csv: column of paths; default the first");
      in_.read("label_column", &options_.csv.label_column,
               "image_csv: column of class numbers; default the second");
    }
    if (is({"tfrecord"})) {
      in_.read("image_feature", &options_.tfrecord.image_feature,
               "tfrecord: input feature: encoded image, raw pixels or floats");
      in_.read("label_feature", &options_.tfrecord.label_feature,
               "tfrecord: feature of class numbers or values");
    }
  }

  void read_shapes() {
    if (is({"tfrecord"}))
      in_.read("record_shape", &options_.tfrecord.shape, count_from(1),
               "tfrecord: channels, height and width of raw pixels, or shape of floats");
    std::string layout = is_only("tfrecord") ? "hwc" : "chw";
    if (is({"tfrecord", "npy", "safetensors"}))
      in_.read_choice("layout", &layout, {"chw", "hwc"},
                      "tfrecord, npy, safetensors: layout of uint8 pixels; tfrecord: default hwc");
    options_.is_interleaved = layout == "hwc";
    // TensorFlow stores raw pixels as [H, W, C], so that is the default there.
    options_.tfrecord.is_interleaved = in_.has("layout") ? layout == "hwc" : true;
  }

  void read_tokens() {
    std::string type = "uint16";
    in_.read("context", &options_.tokens.context, between(1, 1e6), "tokens: tokens per sample");
    in_.read_choice("token_type", &type, {"uint16", "uint32"}, "tokens: type in the files");
    in_.read("vocabulary", &options_.tokens.vocabulary, between(0, 4294967296.0),
             "tokens: vocabulary size; 0: largest token + 1");
    options_.tokens.token_bytes = type == "uint16" ? 2 : 4;
  }

  void read_classes() {
    FeedOptions& feed = options_.feed;
    in_.read("num_classes", &feed.num_classes, between(0, 1e6),
             "files: number of classes; 0: largest label + 1, or number of folders");
    in_.read("one_hot", &feed.one_hot, "files: one-hot soft labels from class numbers");
    if (is({"tfrecord", "npy", "safetensors"}))
      in_.read("soft_labels", &feed.soft_labels,
               "files: targets of several numbers are class probabilities");
    options_.csv.num_classes = feed.num_classes;
    options_.tfrecord.num_classes = feed.num_classes;
  }

  void read_images() {
    FeedOptions& feed = options_.feed;
    in_.read("channels", &feed.channels, between(0, 3),
             "files: 1 (grey) or 3; 0: as stored, 3 for image files");
    if (feed.channels == 2) in_.fault("channels", "images have 1 channel or 3");
    feed.image_size = sizes("image_size",
                            "files: height and width after resizing, or one number; default "
                            "those of the first image");
    std::string fit = "stretch";
    in_.read_choice("fit", &fit, {"stretch", "crop"},
                    "files: resize to image_size by stretching or by center crop");
    feed.keeps_ratio = fit == "crop";
    feed.means = numbers("mean", "files: mean per channel, for values in [0, 1]", false);
    feed.deviations = numbers("std", "files: standard deviation per channel", true);
  }

  void read_augment(ConfigReader in) {
    AugmentOptions& augment = options_.feed.augment;
    in.read("random_crop", &augment.random_crop, between(0, 1e4),
            "most pixels of shift each way, filled with black");
    in.read("random_resized_crop", &augment.random_resized_crop, between(0, 1),
            "least share of the area to crop and resize; 0: off");
    in.read("horizontal_flip", &augment.horizontal_flip, between(0, 1),
            "probability of a mirror image");
    in.read("brightness", &augment.brightness, between(0, 1), "factor from 1 - x to 1 + x");
    in.read("contrast", &augment.contrast, between(0, 1), "factor from 1 - x to 1 + x");
    in.read("saturation", &augment.saturation, between(0, 1), "factor from 1 - x to 1 + x");
    in.read("mixup", &augment.mixup, between(0, 100),
            "alpha of the Beta distribution of mixup, which makes labels soft; 0: off");
    in.done();
  }

  std::vector<double> numbers(const char* key, const char* help, bool are_positive) {
    const YAML::Node node = in_.take(key, "number or list of numbers", help);
    std::vector<double> all;
    if (!node.IsDefined()) return all;
    for (const std::string& text : texts_of(node)) {
      const std::optional<double> number = parse_number(text);
      if (!number || *number < 0 || *number > 1 || (are_positive && *number == 0)) {
        in_.fault(key, fmt::format("'{}.{}' must be a number or a list of numbers of {}0, 1]: "
                                   "pixels are divided by 255 first, so divide these too",
                                   in_.path(), key, are_positive ? "(" : "["));
        return {};
      }
      all.push_back(*number);
    }
    return all;
  }

  std::vector<int64_t> sizes(const char* key, const char* help) {
    const YAML::Node node = in_.take(key, "integer or list of two", help);
    std::vector<int64_t> all;
    if (!node.IsDefined()) return all;
    // A text that is no integer becomes 0, which the check below refuses.
    for (const std::string& text : texts_of(node)) all.push_back(parse_integer(text).value_or(0));
    const bool are_good = std::all_of(all.begin(), all.end(),
                                      [](int64_t size) { return size >= 1 && size <= 16384; });
    if (are_good && (all.size() == 1 || all.size() == 2)) return all;
    in_.fault(key, fmt::format("'{}.{}' must be a whole number from 1 to 16384, or two: height and "
                               "width",
                               in_.path(), key));
    return {};
  }

  static std::vector<std::string> texts_of(const YAML::Node& node) {
    std::vector<std::string> all;
    if (node.IsScalar()) all.push_back(node.Scalar());
    if (node.IsSequence())
      for (const YAML::Node& item : node) all.push_back(item.IsScalar() ? item.Scalar() : "");
    // A node of another kind gives one empty text, which the callers refuse.
    if (all.empty()) all.emplace_back();
    return all;
  }

  ConfigReader& in_;
  DatasetUse use_;
  FilesOptions options_;
};

// Only rank 0 lists; the others parse the result. So files have the same order on all ranks.

/// Returns the only file of a format that is a single file.
std::filesystem::path only_file(const FilesOptions& options) {
  const Paths paths = expand_files(options.path);
  if (paths.size() > 1)
    throw Error(ExitCode::kConfig, "data",
                fmt::format("{}: {} files, this format needs a single one; name it", options.path,
                            paths.size()));
  return paths.front();
}

/// Returns the files of the training set; a folder also has the test set.
Paths cifar_files(const FilesOptions& options, std::string_view training_name) {
  Paths paths = expand_files(options.path);
  if (!is_folder(options.path)) return paths;
  std::erase_if(paths, [&](const std::filesystem::path& path) {
    return path.extension() != ".bin" || !path.filename().string().starts_with(training_name);
  });
  if (paths.empty())
    throw Error(ExitCode::kInputMissing, "data",
                fmt::format("{}: no files {}*.bin", options.path, training_name));
  return paths;
}

/// Returns the facts of the files in order.
std::vector<files::FileFacts> all_of(const Paths& paths) {
  std::vector<files::FileFacts> all(paths.size());
  std::transform(paths.begin(), paths.end(), all.begin(), found_file);
  return all;
}

FoundFiles found_all(const Paths& paths, const Paths& others = {}) {
  FoundFiles found;
  found.files = all_of(paths);
  found.others = all_of(others);
  return found;
}

FoundFiles find_all(const FilesOptions& options) { return found_all(expand_files(options.path)); }

FoundFiles find_csv(const FilesOptions& options) {
  const Paths csvs = expand_files(options.path);
  return found_all(csvs, look_at_remote_images(csvs, options.csv));
}

FoundFiles find_idx(const FilesOptions& options) {
  const Paths images = {only_file(options)};
  if (options.targets.empty()) return found_all(images, {idx_labels_beside(images.front())});
  return found_all(images, {options.targets_file});
}

FoundFiles find_npy(const FilesOptions& options) {
  const Paths inputs = {only_file(options)};
  return options.targets.empty() ? found_all(inputs) : found_all(inputs, {options.targets_file});
}

// Table of the formats. To add a format: an open function in data/formats/formats.h, and a row of
// kFormats.

struct FileFormat {
  std::string_view name;
  std::unique_ptr<Source> (*open)(const FoundFiles& found, const FilesOptions& options);
  /// Finds the files: those of the samples, and others such as targets.
  FoundFiles (*find)(const FilesOptions& options) = find_all;
  // For type `files`. All rows' first bytes are tried first, since endings can be wrong.
  bool (*has_its_bytes)(const UnknownFile& file) = nullptr;
  bool (*has_its_name)(const UnknownFile& file) = nullptr;
};

/// Throws Error(kConfig) with `what` if an option is empty.
void require_option(const std::string& value, const char* what) {
  if (value.empty()) throw Error(ExitCode::kConfig, "data", what);
}

ArrayOptions array_options(const FilesOptions& options) {
  return {.is_interleaved = options.is_interleaved, .num_classes = options.feed.num_classes};
}

std::filesystem::path file_of(const FoundFiles& found) { return found.files.front().path; }

std::unique_ptr<Source> open_folder(const FoundFiles& found, const FilesOptions& o) {
  const int64_t num_trained = o.trained.class_names.empty() ? 0 : o.trained.num_classes;
  return open_class_folder(found, {.trained_names = o.trained.class_names,
                                   .num_trained = num_trained,
                                   .may_lack_targets = o.feed.may_lack_targets});
}

std::unique_ptr<Source> open_arrays(const FoundFiles& found, const FilesOptions& o) {
  if (o.feed.may_lack_targets && o.targets.empty())
    return open_npy(file_of(found), {}, array_options(o));
  require_option(o.targets, "npy: give `targets`, the file of targets");
  return open_npy(file_of(found), found.others.front().path, array_options(o));
}

std::unique_ptr<Source> open_tensors(const FoundFiles& found, const FilesOptions& o) {
  require_option(o.inputs, "safetensors: give `inputs`, the tensor of inputs");
  if (!o.feed.may_lack_targets)
    require_option(o.targets, "safetensors: give `targets`, the tensor of targets");
  return open_safetensors(file_of(found), o.inputs, o.targets, array_options(o));
}

constexpr FileFormat kFormats[] = {
    {"idx",
     [](const auto& found, const auto&) {
       return open_idx(file_of(found), found.others.front().path);
     },
     find_idx, is_idx},
    {"cifar10", [](const auto& found, const auto&) { return open_cifar(found.paths(), 10); },
     [](const auto& o) { return found_all(cifar_files(o, "data_batch")); }, nullptr, is_cifar10},
    {"cifar100", [](const auto& found, const auto&) { return open_cifar(found.paths(), 100); },
     [](const auto& o) { return found_all(cifar_files(o, "train")); }, nullptr, is_cifar100},
    // Recognized by its folders.
    {"image_folder", open_folder,
     [](const auto& o) { return find_class_folder(o.path, o.feed.may_lack_targets); }},
    {"images", [](const auto& found, const auto&) { return open_images(found); },
     [](const auto& o) { return find_images(o.path); }, nullptr,
     [](const auto& file) { return is_image_name(file.path); }},
    {"image_csv",
     [](const auto& found, const auto& o) { return open_image_csv(found.paths(), o.csv); },
     find_csv, nullptr, [](const auto& file) { return file.ending == ".csv"; }},
    {"tfrecord",
     [](const auto& found, const auto& o) { return open_tfrecord(found.paths(), o.tfrecord); },
     find_all, is_tfrecord,
     [](const auto& file) { return file.ending == ".tfrecord" || file.ending == ".tfrecords"; }},
    {"npy", open_arrays, find_npy, is_npy},
    {"safetensors", open_tensors, [](const auto& o) { return found_all({only_file(o)}); }, nullptr,
     [](const auto& file) { return file.ending == ".safetensors"; }},
    // After CIFAR, which has the same ending.
    {"tokens",
     [](const auto& found, const auto& o) { return open_tokens(found.paths(), o.tokens); },
     find_all, nullptr, [](const auto& file) { return file.ending == ".bin"; }},
    {"webdataset",
     [](const auto& found, const auto& o) {
       return open_webdataset(found.paths(), o.feed.num_classes);
     },
     find_all, is_tar, [](const auto& file) { return file.ending == ".tar"; }},
};

const FileFormat& format_named(std::string_view name) {
  const auto* const format = std::ranges::find(kFormats, name, &FileFormat::name);
  check(format != std::end(kFormats), "a format that the table lacks");
  return *format;
}

std::string format_of_file(const std::filesystem::path& path) {
  const UnknownFile file = read_start(path);
  for (const auto recognises : {&FileFormat::has_its_bytes, &FileFormat::has_its_name})
    for (const FileFormat& format : kFormats)
      if (format.*recognises != nullptr && (format.*recognises)(file))
        return std::string(format.name);
  std::vector<std::string_view> names;
  for (const FileFormat& format : kFormats) names.push_back(format.name);
  throw Error(ExitCode::kConfig, "data",
              fmt::format("{}: unknown format; give `type`: {} or {}", path.string(),
                          fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
}

/// Returns the ending without a shard suffix: .tfrecord of train.tfrecord-00001-of-00004. All
/// images share one ending.
std::string ending_of(const std::filesystem::path& path) {
  if (is_image_name(path)) return ".image";
  const std::string ending = path.extension().string();
  return ending.substr(0, ending.find('-'));
}

/// Returns the format of files that a path, folder or pattern names. The first file decides. Throws
/// Error(kInputMissing) if there is no file, Error(kConfig) if the format cannot be determined.
std::string detect_format(const std::string& path) {
  // A folder with folders is one of classes, whatever its files are.
  if (holds_folders(path)) return "image_folder";
  const Paths paths = expand_files(path);
  for (const std::filesystem::path& file : paths)
    if (!is_folder(path) && ending_of(file) != ending_of(paths.front()))
      throw Error(ExitCode::kConfig, "data",
                  path + " names files of several formats, as " + paths.front().string() + " and " +
                      file.string() + ": give a narrower pattern, or `type`");
  return format_of_file(paths.front());
}

/// Finds the files that the options name: expands patterns, lists folders and stores, detects the
/// format. Throws Error(kInputMissing or kConfig) as expand_files() and detect_format() do.
FoundFiles find_files(const FilesOptions& options) {
  const std::string format =
      options.format == "files" ? detect_format(options.path) : options.format;
  FoundFiles found = format_named(format).find(options);
  found.format = format;
  return found;
}

std::unique_ptr<Dataset> open_files(const FoundFiles& found, const FilesOptions& options) {
  return make_files_dataset(format_named(found.format).open(found, options), options.feed);
}

/// Returns the functions that open a data set of files, and that list its files.
DatasetPlan files_plan(const FilesOptions& options) {
  return {[options](const DatasetInputs& inputs) {
            FilesOptions opened = options;
            if (inputs.use == DatasetUse::kInference) opened.feed.augment = {};
            opened.feed.augment.seed = inputs.seed;
            opened.feed.skips_damaged = inputs.skips_damaged;
            opened.trained = inputs.trained;
            // Rank 0's list, if there is one: only one rank should search folders and stores.
            const FoundFiles found =
                inputs.found.empty() ? find_files(options) : FoundFiles::parse(inputs.found);
            return open_files(found, opened);
          },
          [options] { return find_files(options).text(); }};
}

DatasetType files_type(const std::string& name) {
  return {name, [name](ConfigReader* in, DatasetUse use) {
            return files_plan(FilesReader(name, in, use).read());
          }};
}

}  // namespace

std::vector<DatasetType> files_types() {
  std::vector<DatasetType> types = {files_type("files")};
  for (const FileFormat& format : kFormats) types.push_back(files_type(std::string(format.name)));
  return types;
}

}  // namespace lockstep::data
