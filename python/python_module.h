#pragma once

#include "python/value.h"

/// What passes between a program and the Python module: a library that is opened where a run file
/// names Python code, so that other runs load no interpreter. It is compiled for Python's stable
/// interface, and so serves every Python from 3.10 on. Both sides come from one build; `build_id`
/// tells if they do not.
namespace lockstep::python {

struct StartOptions {
  std::string program;      ///< path of the interpreter: its virtual environment is honoured
  std::string glue_folder;  ///< holds lockstep_glue
};

/// What a call gives: `fault` is empty, or the traceback of what Python raised.
struct CallResult {
  Value value;
  std::string fault;
};

struct ModuleTable {
  const char* build_id;  ///< must be the first field of every version

  /// Once a process, before any call. The interpreter takes no signal. Returns the traceback of
  /// what went wrong, or nothing.
  std::string (*start)(const StartOptions& options);

  /// Calls a function of lockstep_glue. From any thread; never throws.
  CallResult (*call)(const char* function, const List& arguments);

  /// What Python raised below C++ code that was called from Python's own (a backward pass), with
  /// its traceback; empty if nothing. Must be asked after such a fault: the next call fails else.
  std::string (*pending_fault)();
};

constexpr const char* kModuleSymbol = "lockstep_python_module";  // extern "C" const ModuleTable
constexpr const char* kModuleFile = "liblockstep_python.so";

}  // namespace lockstep::python
