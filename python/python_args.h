#pragma once

#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::python {

/// Common keys of the sections `model`, `data.train`, `data.eval` and callbacks of type python.
struct PythonArgs {
  std::string path;         ///< path of the .py file
  std::string name;         ///< class or function defined in it
  std::string args = "{}";  ///< keyword arguments, a JSON map
  std::string python;       ///< interpreter; empty: find_python()
};

/// Reads the keys. Faults go to the reader's diagnostics. Each help text begins with "python: ".
PythonArgs read_python_args(ConfigReader* in);

/// Python's value of a plain YAML scalar, as JSON: null, a flag, a number, or a text.
std::string json_of_plain(const std::string& text);

}  // namespace lockstep::python
