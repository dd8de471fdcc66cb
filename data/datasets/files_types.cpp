#include "data/datasets/files_types.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/datasets/files_options.h"
#include "data/files/glob.h"
#include "data/sources/detect.h"

namespace lockstep::data {
namespace {

using OpenSource = std::unique_ptr<Source> (*)(const FilesOptions& options);

struct FileFormat {
  const char* name;
  OpenSource open;
};

/// The one file of formats that are one.
std::filesystem::path only_file(const FilesOptions& options) {
  const Paths paths = expand_files(options.path);
  if (paths.size() > 1)
    throw Error(
        ExitCode::kConfig, "data",
        fmt::format("{}: {} files, this format is one; name it", options.path, paths.size()));
  return paths.front();
}

const std::string& needed(const std::string& value, const char* what) {
  if (value.empty()) throw Error(ExitCode::kConfig, "data", what);
  return value;
}

ArrayOptions array_options(const FilesOptions& options) {
  return {.is_interleaved = options.is_interleaved, .num_classes = options.feed.num_classes};
}

/// data_batch_*.bin of a folder that holds the test set too.
Paths cifar_files(const FilesOptions& options, std::string_view training_name) {
  Paths paths = expand_files(options.path);
  if (!std::filesystem::is_directory(options.path)) return paths;
  std::erase_if(paths, [&](const std::filesystem::path& path) {
    return path.extension() != ".bin" || !path.filename().string().starts_with(training_name);
  });
  if (paths.empty())
    throw Error(ExitCode::kInputMissing, "data",
                fmt::format("{}: no files {}*.bin", options.path, training_name));
  return paths;
}

constexpr FileFormat kFormats[] = {
    {"idx", [](const FilesOptions& o) { return open_idx(only_file(o), o.targets); }},
    {"cifar10", [](const FilesOptions& o) { return open_cifar(cifar_files(o, "data_batch"), 10); }},
    {"cifar100", [](const FilesOptions& o) { return open_cifar(cifar_files(o, "train"), 100); }},
    {"image_folder", [](const FilesOptions& o) { return open_class_folder(o.path); }},
    {"image_csv", [](const FilesOptions& o) { return open_image_csv(only_file(o), o.csv); }},
    {"tfrecord",
     [](const FilesOptions& o) { return open_tfrecord(expand_files(o.path), o.tfrecord); }},
    {"npy",
     [](const FilesOptions& o) {
       return open_npy(only_file(o), needed(o.targets, "npy: give `targets`, the file of targets"),
                       array_options(o));
     }},
    {"safetensors",
     [](const FilesOptions& o) {
       return open_safetensors(
           only_file(o), needed(o.inputs, "safetensors: give `inputs`, the tensor of inputs"),
           needed(o.targets, "safetensors: give `targets`, the tensor of targets"),
           array_options(o));
     }},
    {"tokens", [](const FilesOptions& o) { return open_tokens(expand_files(o.path), o.tokens); }},
    {"webdataset",
     [](const FilesOptions& o) {
       return open_webdataset(expand_files(o.path), o.feed.num_classes);
     }},
};

std::unique_ptr<Dataset> open_files(const FilesOptions& options) {
  const std::string name = options.format == "files" ? detect_format(options.path) : options.format;
  for (const FileFormat& format : kFormats)
    if (name == format.name)
      return std::make_unique<FilesDataset>(format.open(options), options.feed);
  check(false, "a format that the table lacks");
  return nullptr;
}

DatasetType files_type(const std::string& name) {
  return {name, [name](ConfigReader* in, DatasetUse use) -> MakeDataset {
            return [options = read_files_options(name, in, use)](const DatasetInputs& inputs) {
              FilesOptions seeded = options;
              seeded.feed.augment.seed = inputs.seed;
              return open_files(seeded);
            };
          }};
}

}  // namespace

std::vector<DatasetType> files_types() {
  std::vector<DatasetType> types = {files_type("files")};
  for (const FileFormat& format : kFormats) types.push_back(files_type(format.name));
  return types;
}

}  // namespace lockstep::data
