#pragma once

#include <string>
#include <vector>

namespace lockstep::checkpoint::tests {

/// Effect of a fault on the call that it hits.
enum class Strike {
  kIoError,       ///< fails with EIO
  kBrokenDisk,    ///< fails with EIO, and so does every pread after it
  kNoPermission,  ///< fails with EACCES
  kInvalid,       ///< fails with EINVAL
  kNoLocks,       ///< fails with ENOSYS
  kShort,         ///< a read: gives half of the bytes, which is no error
  kEnd,           ///< a read: the file has ended
  kFlip,          ///< a read: one bit of what it gives is another
  kKill,          ///< the process dies, with no chance to tidy up
};

/// While it lives, the `nth` call (from 1) of `call` (open, pread, fsync, flock) on a path that
/// holds `path`, or of pthread_create (which fails with EAGAIN) or madvise with MADV_POPULATE_READ
/// (`path` is empty for both), is struck; 0: each. This program's own calls alone, over all
/// threads. Two at a time, on different calls.
class StruckCall {
 public:
  StruckCall(std::string call, std::string path, int nth, Strike what);
  ~StruckCall();
  StruckCall(const StruckCall&) = delete;
  StruckCall& operator=(const StruckCall&) = delete;

  /// True if the number of calls reached the faulty one.
  bool was_reached() const;

 private:
  int slot_ = 0;
};

/// While it lives, the paths of fsync calls are noted, in order.
class SyncedPaths {
 public:
  SyncedPaths();
  ~SyncedPaths();
  SyncedPaths(const SyncedPaths&) = delete;
  SyncedPaths& operator=(const SyncedPaths&) = delete;

  std::vector<std::string> paths() const;
};

}  // namespace lockstep::checkpoint::tests
