#pragma once

#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::python {

/// What the sections `model`, `data.train` and `data.eval` of type python have in common.
struct PythonArgs {
  std::string path;         ///< of the .py file
  std::string name;         ///< what it defines: a class, or a function
  std::string args = "{}";  ///< keyword arguments, a JSON map
  std::string python;       ///< the interpreter; empty: find_python()
};

/// Reads them; faults go where `in` sends them. Each help text begins with "python: ".
PythonArgs read_python_args(ConfigReader* in);

/// Python's value of a plain YAML scalar, as JSON: null, a flag, a number, else a text.
std::string json_of_plain(const std::string& text);

}  // namespace lockstep::python
