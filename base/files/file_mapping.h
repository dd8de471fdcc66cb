#pragma once

#include <cstdint>

#include "base/files/files.h"

namespace lockstep::files {

/// Memory mapping of a file: its bytes as pages of the system's page cache, so that reading copies
/// nothing. Some files, and kernels before Linux 5.14, cannot do that without the risk of a SIGBUS
/// at a disk fault. Then the bytes are read into memory. Both functions may run on several threads
/// at once, for disjoint ranges.
class Mapping {
 public:
  /// Takes address space for the entire file, but no memory. `file` must outlive the object. Throws
  /// Error(kIo) if there is not enough address space.
  explicit Mapping(const Reader& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Returns bytes [offset, offset + num_bytes), which must be inside the file, after reading them
  /// from the disk. They are valid until release(). Throws Error(kIo) if they cannot be read. Later
  /// reads of the memory fail (SIGBUS) only in two cases. Somebody truncates the file, or the
  /// system drops pages and cannot read them again.
  const char* fetch(int64_t offset, int64_t num_bytes) const;
  /// Releases the pages that are entirely in the range; other fetched bytes stay.
  void release(int64_t offset, int64_t num_bytes) const;
  /// Releases everything that was fetched. No other call may run at the same time.
  void release() const { release(0, file_.num_bytes()); }

 private:
  const Reader& file_;
  char* bytes_ = nullptr;
  bool is_copy_ = false;  ///< anonymous memory that fetch() reads into
};

}  // namespace lockstep::files
