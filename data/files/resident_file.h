#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/file_mapping.h"
#include "base/files/files.h"

namespace lockstep::data {

/// File for reading at any position, thread-safe. A file of at most 512 MiB is mapped and loaded
/// into memory on opening. So reads cost nothing more. Of a larger file, or one in a store, each
/// range is read on request.
class ResidentFile {
 public:
  /// Throws Error(kInputMissing) for a missing file.
  explicit ResidentFile(const std::filesystem::path& path);

  /// Returns bytes [offset, offset + num_bytes), which must be inside the file. They are valid
  /// while this object and `storage` are unchanged.
  std::string_view bytes(int64_t offset, int64_t num_bytes, std::string* storage) const;

  /// Prefetches bytes of a mapped file into the processor's caches if they are few.
  void expect(int64_t offset, int64_t num_bytes) const;

  int64_t num_bytes() const { return reader_.num_bytes(); }
  const std::filesystem::path& path() const { return reader_.path(); }

 private:
  files::Reader reader_;
  std::unique_ptr<files::Mapping> mapping_;
  const char* begin_ = nullptr;  // null: too large to map
};

}  // namespace lockstep::data
