#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

/// Interface between a program and the Python module, and the values that are passed. The module is
/// a library that is loaded if a run file names Python code. Other runs load no interpreter. It is
/// compiled for Python's stable interface and works with every Python from 3.10 on. Both sides must
/// come from one build, which `build_id` verifies.
namespace lockstep::python {

/// Python object, kept alive by this side; copies share it.
using Object = std::shared_ptr<void>;

struct Value;
struct Function;
using List = std::vector<Value>;
using Map = std::vector<std::pair<std::string, Value>>;  // in Python's order

/// Value passed between C++ and Python. None, bool, int, float, str, a tensor (shared memory), a
/// list or tuple, a dict with text keys, or another object. To Python also a function of C++.
struct Value : std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, List,
                            Map, Object, std::shared_ptr<const Function>> {
  using variant::variant;

  bool is_none() const { return std::holds_alternative<std::monostate>(*this); }
  bool is_tensor() const { return std::holds_alternative<at::Tensor>(*this); }
  /// Accessors by type. Throw std::bad_variant_access for another type.
  bool as_bool() const { return std::get<bool>(*this); }
  int64_t as_int() const { return std::get<int64_t>(*this); }
  const std::string& as_text() const { return std::get<std::string>(*this); }
  const at::Tensor& as_tensor() const { return std::get<at::Tensor>(*this); }
  const List& as_list() const { return std::get<List>(*this); }
  const Map& as_map() const { return std::get<Map>(*this); }
  const Object& as_object() const { return std::get<Object>(*this); }
};

/// Function that Python calls with positional arguments, holding the interpreter's lock. It may
/// throw: Python then raises RuntimeError with the message.
struct Function {
  std::function<Value(const List& arguments)> call;
};

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
