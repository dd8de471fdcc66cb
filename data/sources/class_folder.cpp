#include "base/error.h"
#include "data/files/glob.h"
#include "data/sources/formats.h"
#include "data/sources/image_files.h"

namespace lockstep::data {

FoundFiles find_class_folder(const std::string& folder) {
  FoundFiles found;
  for (const Subfolder& of_class : files_by_folder(folder, is_image_name)) {
    for (const std::filesystem::path& image : of_class.files)
      found.files.push_back(found_file(image));
    found.labels.insert(found.labels.end(), of_class.files.size(), found.num_classes);
    ++found.num_classes;
  }
  if (found.files.empty())
    throw Error(
        ExitCode::kInputMissing, "data",
        folder +
            ": holds no images; it must be a folder with a folder for each class, and .jpg, "
            ".jpeg or .png files in those");
  return found;
}

std::unique_ptr<Source> open_class_folder(const FoundFiles& found) {
  return std::make_unique<ImageFiles>(found.paths(), found.labels, found.num_classes);
}

FoundFiles find_images(const std::string& path) {
  FoundFiles found;
  for (const std::filesystem::path& file : expand_files(path))
    if (is_image_name(file)) found.files.push_back(found_file(file));
  if (found.files.empty())
    throw Error(ExitCode::kInputMissing, "data",
                path + ": no file there ends in .jpg, .jpeg or .png");
  return found;
}

std::unique_ptr<Source> open_images(const FoundFiles& found) {
  return std::make_unique<ImageFiles>(found.paths(), std::vector<int64_t>(), 0);
}

}  // namespace lockstep::data
