#pragma once

#include "python/value.h"

/// Interface between a program and the Python module. The module is a library that is loaded if a
/// run file names Python code. Other runs load no interpreter. It is compiled for Python's stable
/// interface and works with every Python from 3.10 on. Both sides must come from one build, which
/// `build_id` verifies.
namespace lockstep::python {

struct StartOptions {
  std::string program;      ///< path of the interpreter, whose virtual environment is used
  std::string glue_folder;  ///< contains lockstep_glue
};

/// Result of a call: the value, or in `fault` the traceback of a Python exception.
struct CallResult {
  Value value;
  std::string fault;
};

struct ModuleTable {
  const char* build_id;  ///< must be the first field of every version

  /// Starts the interpreter, once per process, before any call. Signals stay with the program.
  /// Returns the traceback of an error, or "".
  std::string (*start)(const StartOptions& options);

  /// Calls a function of lockstep_glue. Thread-safe. Never throws.
  CallResult (*call)(const char* function, const List& arguments);

  /// Returns an exception, with its traceback, and clears it; "" if none. It comes from Python code
  /// inside C++ code that Python called, such as a backward pass. After such an exception the next
  /// call fails unless this was called.
  std::string (*pending_fault)();
};

constexpr const char* kModuleSymbol = "lockstep_python_module";  // extern "C" const ModuleTable
constexpr const char* kModuleFile = "liblockstep_python.so";

}  // namespace lockstep::python
