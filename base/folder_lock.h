#pragma once

#include <filesystem>

namespace lockstep::files {

/// One process' claim on a folder: an exclusive flock on FOLDER/.lock, which the system releases
/// when the process ends, however it ends. The file names its holder and stays behind, empty of
/// meaning.
class FolderLock {
 public:
  /// Waits up to patience_s for a holder that is just ending (as after a kill and a restart).
  /// Throws Error(kCannotCreate) naming the holder if the folder stays taken.
  /// On a file system without locks it only warns.
  FolderLock(const std::filesystem::path& folder, double patience_s);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  /// The open lock file; closing it gives the lock back.
  class File {
   public:
    explicit File(const std::filesystem::path& path);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int value() const { return value_; }

   private:
    int value_;
  };

  File file_;
};

}  // namespace lockstep::files
