#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::python {

/// Python object, kept alive by this side; copies share it.
using Object = std::shared_ptr<void>;

struct Value;
using List = std::vector<Value>;
using Map = std::vector<std::pair<std::string, Value>>;  // in Python's order

/// Value passed between C++ and Python. None, bool, int, float, str, a tensor (shared memory), a
/// list or tuple, a dict with text keys, or another object.
struct Value : std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, List,
                            Map, Object> {
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

}  // namespace lockstep::python
