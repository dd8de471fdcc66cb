// Listing happens on rank 0 only; the others parse the result. So the order of files is the same on
// all ranks.
#include "data/datasets/find_files.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "data/files/glob.h"
#include "data/sources/detect.h"

namespace lockstep::data {
namespace {

/// Returns the only file of a format that is a single file.
std::filesystem::path only_file(const FilesOptions& options) {
  const Paths paths = expand_files(options.path);
  if (paths.size() > 1)
    throw Error(
        ExitCode::kConfig, "data",
        fmt::format("{}: {} files, this format is one; name it", options.path, paths.size()));
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

/// Finds the files of a format: its samples' files, and others such as targets.
FoundFiles found_in_format(const std::string& format, const FilesOptions& options) {
  if (format == "image_folder")
    return find_class_folder(options.path, options.feed.may_lack_targets);
  if (format == "images") return find_images(options.path);
  FoundFiles found;
  if (format == "cifar10" || format == "cifar100") {
    found.files = all_of(cifar_files(options, format == "cifar10" ? "data_batch" : "train"));
  } else if (format == "image_csv") {
    const Paths csvs = expand_files(options.path);
    found.files = all_of(csvs);
    found.others = all_of(look_at_remote_images(csvs, options.csv));
  } else if (format == "tfrecord" || format == "tokens" || format == "webdataset") {
    found.files = all_of(expand_files(options.path));
  } else {
    const std::filesystem::path file = only_file(options);
    found.files = {found_file(file)};
    if (format == "idx") {
      const bool says = !options.targets.empty();
      found.others = {
          found_file(says ? std::filesystem::path(options.targets_file) : idx_labels_beside(file))};
    }
    if (format == "npy" && !options.targets.empty())
      found.others = {found_file(options.targets_file)};
  }
  return found;
}

}  // namespace

FoundFiles find_files(const FilesOptions& options) {
  const std::string format =
      options.format == "files" ? detect_format(options.path) : options.format;
  FoundFiles found = found_in_format(format, options);
  found.format = format;
  return found;
}

}  // namespace lockstep::data
