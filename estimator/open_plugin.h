#pragma once

#include <deque>
#include <exception>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "base/error.h"

/// Plug-ins that this process opens, and calls of their code.
namespace lockstep::estimator {

/// Calls `work`, code of a plug-in. An Error keeps its code, any other exception becomes
/// Error(kConfig). Both then name `where`: "estimator Moons of lib.so".
template <typename Work>
auto run_user_code(const std::string& where, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (Error& fault) {
    fault.append(" (thrown by " + where + ")");
    throw;
  } catch (const c10::Error& fault) {  // LibTorch's text without its C++ stack
    const std::string text = fault.what_without_backtrace();
    throw Error(ExitCode::kConfig, "plugin",
                where + ": " + text.substr(0, text.find("\nException raised from")));
  } catch (const std::exception& fault) {
    throw Error(ExitCode::kConfig, "plugin", where + ": " + fault.what());
  } catch (...) {
    throw Error(ExitCode::kConfig, "plugin", where + ": it threw an exception without a message");
  }
}

/// Plug-in (estimator/plugin.h) that this process has opened.
struct Plugin {
  std::string path;                     ///< as first named
  std::string sha256;                   ///< of the file
  std::vector<std::string> estimators;  ///< rows that it added to estimator_types()
};

/// Opens a plug-in and lets it add its rows. Files with the same bytes are opened once per run. The
/// code remains until the end of the process. Not thread-safe: call it before the run begins.
///
/// Throws Error: kInputMissing for a missing file. kConfig if it is not a plug-in or cannot be
/// linked. kConfig, with both versions, if it was built for another Lockstep, LibTorch or C++ ABI.
/// Its own exception while it adds its rows. kUnavailable if an earlier run of this process opened
/// the file and it was rebuilt since.
const Plugin& open_plugin(const std::string& path);

/// Returns the plug-ins of this run in the order of opening.
const std::deque<Plugin>& opened_plugins();

}  // namespace lockstep::estimator
