#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/file_mapping.h"
#include "base/files/files.h"

namespace lockstep::data {

/// A file that is read at chosen places, by any thread. One of at most 512 MiB is mapped and
/// brought into memory when it is opened, so that its bytes cost nothing more; of a larger one, and
/// of one in a store, each range is read when it is asked for.
class ResidentFile {
 public:
  /// Throws Error(kInputMissing) if it is not there.
  explicit ResidentFile(const std::filesystem::path& path);

  /// Bytes [offset, offset + num_bytes), which lie inside the file; valid while both the object and
  /// what `storage` holds stay as they are.
  std::string_view bytes(int64_t offset, int64_t num_bytes, std::string* storage) const;

  /// Brings bytes of a mapped file into the processor's caches, so far as they are few.
  void expect(int64_t offset, int64_t num_bytes) const;

  int64_t num_bytes() const { return reader_.num_bytes(); }
  const std::filesystem::path& path() const { return reader_.path(); }

 private:
  files::Reader reader_;
  std::unique_ptr<files::Mapping> mapping_;
  const char* begin_ = nullptr;  // null: too large to be mapped
};

}  // namespace lockstep::data
