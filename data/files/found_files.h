#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file_store.h"

namespace lockstep::data {

/// Files of a data set, listed once for all ranks: rank 0 lists them, the others parse its text().
struct FoundFiles {
  std::string format;                    ///< name of the format's row: idx, cifar10, ...
  std::vector<files::FileFacts> files;   ///< in record order
  std::vector<int64_t> labels;           ///< per file; empty unless folders are the classes
  std::vector<std::string> class_names;  ///< names of those folders, indexed by `labels`
  /// Further files: targets, and images that other files name.
  std::vector<files::FileFacts> others;

  std::vector<std::filesystem::path> paths() const;

  /// Returns all of it as one text.
  std::string text() const;
  /// Parses what text() returned, and makes the facts about files in stores known to these stores.
  static FoundFiles parse(std::string_view text);

  bool operator==(const FoundFiles& other) const = default;
};

/// Returns the facts of a file in a store; for a file of this host only the path.
files::FileFacts found_file(const std::filesystem::path& path);

}  // namespace lockstep::data
