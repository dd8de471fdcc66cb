// Image folders: a folder per class gives the labels, or one folder of images without labels.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "data/files/glob.h"
#include "data/sources/formats.h"
#include "data/sources/image_files.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxNames = 20;  // in a list of a message

/// Returns the names for a message, the first kMaxNames of them.
std::string text_of(const std::vector<std::string>& names) {
  const size_t num_shown = std::min(names.size(), kMaxNames);
  const std::vector<std::string> shown(names.begin(),
                                       names.begin() + static_cast<int64_t>(num_shown));
  const std::string rest =
      num_shown < names.size() ? fmt::format(" and {} more", names.size() - num_shown) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), rest);
}

/// Returns, for instance, "4 .bmp, 1 without an ending".
std::string text_of(const EndingCounts& counts) {
  std::vector<std::string> texts;
  for (const auto& [ending, count] : counts)
    texts.push_back(fmt::format("{} {}", count, ending.empty() ? "without an ending" : ending));
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
    log::warning("data", fmt::format("{}: images left out: {}; only .jpg, .jpeg and .png files are "
                                     "read: convert the others",
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
              fmt::format("{}: there are folders of the classes {}; data.train has the classes {}: "
                          "rename the folders, or remove them",
                          path, text_of(unknown), text_of(trained)));
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
    throw Error(
        ExitCode::kInputMissing, "data",
        folder +
            ": holds no images; it must be a folder with a folder for each class, and .jpg, "
            ".jpeg or .png files in those");
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
  auto source = std::make_unique<ImageFiles>(found.paths(), std::move(labels), num_classes);
  source->set_class_names(names);
  return source;
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
    throw Error(ExitCode::kInputMissing, "data",
                path + ": no file there ends in .jpg, .jpeg or .png");
  warn_of_other_images(path, others);
  return found;
}

std::unique_ptr<Source> open_images(const FoundFiles& found) {
  return std::make_unique<ImageFiles>(found.paths(), std::vector<int64_t>(), 0);
}

}  // namespace lockstep::data
