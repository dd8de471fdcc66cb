#pragma once

#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::daemon {

/// Scope in which relative paths of this process start at another folder, the one where a job was
/// submitted. Throws Error(kInputMissing) if the folder does not exist.
class InFolder {
 public:
  explicit InFolder(const std::string& folder) {
    std::error_code fault;
    before_ = std::filesystem::current_path(fault);
    std::filesystem::current_path(folder, fault);
    if (fault)
      throw Error(ExitCode::kInputMissing, "serve",
                  fmt::format("{}, where the job was submitted: {}; the folder must be there for "
                              "all ranks",
                              folder, fault.message()));
  }
  ~InFolder() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
  }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;

 private:
  std::filesystem::path before_;
};

}  // namespace lockstep::daemon
