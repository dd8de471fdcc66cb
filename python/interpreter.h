#pragma once

#include <string>

#include "base/error.h"
#include "python/python_module.h"

/// The Python interpreter inside this process. There is at most one. It starts when a run file
/// names Python code, and stays to the end of the process.
namespace lockstep::python {

/// Starts the interpreter, unless it runs. wanted: path of an interpreter, or empty
/// (find_python()). Throws Error(kConfig) if none is usable, or if another one runs already.
void start(const std::string& wanted);
bool is_running();

/// Describes the module that start() loads: "for Python 3.10 and later, LIBRARY". Starts nothing.
/// Throws Error(kUnavailable) if the module is missing or of another build.
std::string module_version();

/// Calls a function of lockstep_glue, from any thread, after start().
///
/// A Python exception becomes Error(`code`) with its traceback, the user's file and line first.
Value call(const char* function, const List& arguments, ExitCode code);

/// Throws Error(kConfig) if Python code raised inside a C++ call, such as a backward pass.
void throw_pending_fault();

/// Flushes Python's output. Leave the process with _exit() afterwards: threads of Python code may
/// still run, and the end of main() would not be safe with them.
void flush();

}  // namespace lockstep::python
