#pragma once

#include <string>
#include <vector>

namespace lockstep::estimator {

/// A plug-in (estimator/plugin.h) that this process has opened.
struct Plugin {
  std::string path;                     ///< as it was first named
  std::string sha256;                   ///< of the file
  std::vector<std::string> estimators;  ///< rows that it added to estimator_types()
};

/// Opens a plug-in and lets it add its rows; a file of the same bytes only once a run. Its code
/// stays to the end of the process. Not thread-safe: before the run begins.
///
/// Throws Error: kInputMissing if there is no such file; kConfig if it is no plug-in, was made for
/// another Lockstep, LibTorch or C++ ABI (the text names both), or cannot be linked; what it throws
/// itself while it adds its rows; kUnavailable if an earlier run of this process opened the file
/// and it was built again since.
const Plugin& open_plugin(const std::string& path);

/// Those of this run, in the order in which they were opened.
const std::vector<const Plugin*>& opened_plugins();

}  // namespace lockstep::estimator
