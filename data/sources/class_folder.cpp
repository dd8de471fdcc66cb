#include <algorithm>

#include "base/error.h"
#include "base/files/files.h"
#include "data/sources/formats.h"
#include "data/sources/image_files.h"

namespace lockstep::data {
namespace {

/// Whether a link leads to a folder that it lies in.
bool goes_round(const std::filesystem::path& link) {
  std::error_code fault;
  const auto target = std::filesystem::canonical(link, fault);
  const auto folder = std::filesystem::canonical(link.parent_path(), fault);
  return std::mismatch(target.begin(), target.end(), folder.begin(), folder.end()).first ==
         target.end();
}

/// Images of a folder and those below, sorted.
Paths images_below(const std::filesystem::path& folder) {
  Paths images;
  std::error_code fault;
  using std::filesystem::directory_options;
  std::filesystem::recursive_directory_iterator entry(
      folder, directory_options::follow_directory_symlink, fault);
  for (; !fault && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(fault)) {
    if (is_image_name(entry->path()) && !entry->is_directory(fault))
      images.push_back(entry->path());
    if (entry->is_symlink(fault) && goes_round(entry->path())) entry.disable_recursion_pending();
  }
  if (fault)
    throw Error(ExitCode::kIo, "data", folder.string() + ": cannot be listed: " + fault.message());
  std::sort(images.begin(), images.end());
  return images;
}

}  // namespace

std::unique_ptr<Source> open_class_folder(const std::filesystem::path& folder) {
  Paths images;
  std::vector<int64_t> labels;
  int64_t num_classes = 0;
  for (const std::string& name : files::list(folder)) {
    if (name.starts_with(".") || !std::filesystem::is_directory(folder / name)) continue;
    const Paths of_class = images_below(folder / name);
    images.insert(images.end(), of_class.begin(), of_class.end());
    labels.insert(labels.end(), of_class.size(), num_classes);
    ++num_classes;
  }
  if (images.empty())
    throw Error(
        ExitCode::kInputMissing, "data",
        folder.string() +
            ": holds no images; it must be a folder with a folder for each class, and .jpg, "
            ".jpeg or .png files in those");
  return std::make_unique<ImageFiles>(std::move(images), std::move(labels), num_classes);
}

}  // namespace lockstep::data
