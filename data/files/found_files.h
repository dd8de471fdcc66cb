#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file_store.h"

namespace lockstep::data {

/// The files of a data set, found once for all ranks: by rank 0, whose text() the others parse.
struct FoundFiles {
  std::string format;                    ///< name of its row: idx, cifar10, ...
  std::vector<files::FileFacts> files;   ///< in the order of their records
  std::vector<int64_t> labels;           ///< of each file; empty unless folders are the classes
  std::vector<std::string> class_names;  ///< names of those folders, in the order of `labels`
  /// Further files: targets, and images that files name.
  std::vector<files::FileFacts> others;

  std::vector<std::filesystem::path> paths() const;

  /// One text of it all.
  std::string text() const;
  /// `text` is what text() gave. What it says of files in stores is known to these from now on.
  static FoundFiles parse(std::string_view text);

  bool operator==(const FoundFiles& other) const = default;
};

/// Facts of a file in a store; of a file of this host the path alone.
files::FileFacts found_file(const std::filesystem::path& path);

}  // namespace lockstep::data
