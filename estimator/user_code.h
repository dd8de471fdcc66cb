#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include "base/error.h"

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
    throw Error(ExitCode::kConfig, "plugin", where + ": it threw something without a text");
  }
}

}  // namespace lockstep::estimator
