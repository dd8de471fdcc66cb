// To add a format: an open function in data/sources/formats.h, a line in kFormats, and its files in
// find_files.cpp.
#include "data/datasets/files_types.h"

#include "base/error.h"
#include "data/datasets/files_options.h"
#include "data/datasets/find_files.h"

namespace lockstep::data {
namespace {

/// Function that opens the files of a format.
using OpenSource = std::unique_ptr<Source> (*)(const FoundFiles& found,
                                               const FilesOptions& options);

struct FileFormat {
  const char* name;
  OpenSource open;
};

/// Returns the value of an option; throws Error(kConfig) with `what` if it is empty.
const std::string& needed(const std::string& value, const char* what) {
  if (value.empty()) throw Error(ExitCode::kConfig, "data", what);
  return value;
}

ArrayOptions array_options(const FilesOptions& options) {
  return {.is_interleaved = options.is_interleaved, .num_classes = options.feed.num_classes};
}

std::filesystem::path file_of(const FoundFiles& found) { return found.files.front().path; }

/// Table of the formats. A new one needs a row here.
constexpr FileFormat kFormats[] = {
    {"idx",
     [](const FoundFiles& found, const FilesOptions&) {
       return open_idx(file_of(found), found.others.front().path);
     }},
    {"cifar10",
     [](const FoundFiles& found, const FilesOptions&) { return open_cifar(found.paths(), 10); }},
    {"cifar100",
     [](const FoundFiles& found, const FilesOptions&) { return open_cifar(found.paths(), 100); }},
    {"image_folder",
     [](const FoundFiles& found, const FilesOptions& o) {
       return open_class_folder(
           found, {.trained_names = o.trained.class_names,
                   .num_trained = o.trained.class_names.empty() ? 0 : o.trained.num_classes,
                   .may_lack_targets = o.feed.may_lack_targets});
     }},
    {"images", [](const FoundFiles& found, const FilesOptions&) { return open_images(found); }},
    {"image_csv", [](const FoundFiles& found,
                     const FilesOptions& o) { return open_image_csv(found.paths(), o.csv); }},
    {"tfrecord", [](const FoundFiles& found,
                    const FilesOptions& o) { return open_tfrecord(found.paths(), o.tfrecord); }},
    {"npy",
     [](const FoundFiles& found, const FilesOptions& o) {
       if (o.feed.may_lack_targets && o.targets.empty())
         return open_npy(file_of(found), {}, array_options(o));
       (void)needed(o.targets, "npy: give `targets`, the file of targets");
       return open_npy(file_of(found), found.others.front().path, array_options(o));
     }},
    {"safetensors",
     [](const FoundFiles& found, const FilesOptions& o) {
       (void)needed(o.inputs, "safetensors: give `inputs`, the tensor of inputs");
       if (!o.feed.may_lack_targets)
         (void)needed(o.targets, "safetensors: give `targets`, the tensor of targets");
       return open_safetensors(file_of(found), o.inputs, o.targets, array_options(o));
     }},
    {"tokens", [](const FoundFiles& found,
                  const FilesOptions& o) { return open_tokens(found.paths(), o.tokens); }},
    {"webdataset",
     [](const FoundFiles& found, const FilesOptions& o) {
       return open_webdataset(found.paths(), o.feed.num_classes);
     }},
};

std::unique_ptr<Dataset> open_files(const FoundFiles& found, const FilesOptions& options) {
  for (const FileFormat& format : kFormats)
    if (found.format == format.name)
      return std::make_unique<FilesDataset>(format.open(found, options), options.feed);
  check(false, "a format that the table lacks");
  return nullptr;
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
            return files_plan(read_files_options(name, in, use));
          }};
}

}  // namespace

std::vector<DatasetType> files_types() {
  std::vector<DatasetType> types = {files_type("files")};
  for (const FileFormat& format : kFormats) types.push_back(files_type(format.name));
  return types;
}

}  // namespace lockstep::data
