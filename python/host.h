#pragma once

#include <string>

#include "base/error.h"
#include "python/value.h"

/// The Python interpreter inside this process. There is one at most; it is started where a run file
/// names Python code, and stays to the end of the process.
namespace lockstep::python {

/// Starts it, unless it runs. `wanted`: an interpreter's path, or nothing (find_python()). Throws
/// Error(kConfig) if there is no usable one, or if another one runs already.
void start(const std::string& wanted);
bool is_running();

/// "for Python 3.10 and later, LIBRARY": the module that start() opens. Starts nothing. Throws
/// Error(kUnavailable) if it is missing or of another build.
std::string module_version();

/// Calls a function of lockstep_glue; from any thread, after start().
///
/// What Python raises becomes Error(`code`) with its traceback, the place in the user's file first.
Value call(const char* function, const List& arguments, ExitCode code);

/// Throws Error(kConfig) if Python code raised something below a C++ call, such as a backward pass.
void throw_pending_fault();

/// Flushes what Python has printed. After it, leave with _exit(): threads of Python code may still
/// run, under which the end of main() is not safe.
void flush();

}  // namespace lockstep::python
