#pragma once

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/yaml/config_reader.h"
#include "python/python_types.h"

namespace lockstep::tests {

/// Arguments for a class of tests/integration/programs/python; opens the module of this build.
inline python::PythonArgs python_args(const std::string& file, const std::string& name,
                                      const std::string& args = "{}") {
  ::setenv("LOCKSTEP_PYTHON_MODULE", LOCKSTEP_PYTHON_MODULE, 1);
  return {.path = LOCKSTEP_SOURCE_DIR "/tests/integration/programs/python/" + file,
          .name = name,
          .args = args,
          .python = ""};
}

/// Error of the action with its exit code in front: "78 [python] ...".
template <typename Action>
std::string fault_of(const Action& action) {
  try {
    action();
  } catch (const Error& fault) {
    return std::to_string(static_cast<int>(fault.code())) + " " + fault.what();
  }
  return "nothing";
}

}  // namespace lockstep::tests
