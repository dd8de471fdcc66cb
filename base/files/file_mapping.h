#pragma once

#include <cstdint>

#include "base/files/files.h"

namespace lockstep::files {

/// Memory mapping of a file: its bytes as pages of the system's page cache, so that nothing is
/// copied to read them. Where the file or the kernel (before Linux 5.14) cannot do that without
/// the risk of a SIGBUS at a fault of the disk, memory that they are read into. Threads may call
/// both functions at once, for ranges that are apart.
class Mapping {
 public:
  /// `file` must outlive the object. Takes address space for the whole file, memory for none of it.
  /// Throws Error(kIo) if there is not so much address space.
  explicit Mapping(const Reader& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Bytes [offset, offset + num_bytes), which lie inside the file, read from the disk when it
  /// returns; they stay until release(). Throws Error(kIo) if they cannot be read. Once it has
  /// returned, only a file that somebody truncates, or pages that the system drops and then cannot
  /// read again, make reading them fail (SIGBUS).
  const char* fetch(int64_t offset, int64_t num_bytes) const;
  /// Gives back the pages that lie wholly in the range; what else was fetched stays.
  void release(int64_t offset, int64_t num_bytes) const;
  /// Gives back all that was fetched; stands alone.
  void release() const { release(0, file_.num_bytes()); }

 private:
  const Reader& file_;
  char* bytes_ = nullptr;
  bool is_copy_ = false;  ///< anonymous memory that fetch() reads into
};

}  // namespace lockstep::files
