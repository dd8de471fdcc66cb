#include "checkpoint/files/state_names.h"

#include <fmt/format.h>

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kSuffix = "/.ATTRIBUTES/VARIABLE_VALUE";

}  // namespace

bool is_beside_graph(std::string_view key) { return key.starts_with(kBesideGraph); }

std::string index_name(std::string_view key) {
  if (is_beside_graph(key)) return std::string(key);
  std::string name;
  // TensorFlow escapes "." as ".." and "/" as ".S". A key's slash separates objects and is not
  // escaped.
  for (const char letter : key) name.append(letter == '.' ? 2 : 1, letter);
  return name.append(kSuffix);
}

std::string sparse_values_name(std::string_view key) {
  return fmt::format("_lockstep/sparse/{}/values", key);
}

std::string sparse_form_name(std::string_view key) {
  return fmt::format("_lockstep/sparse/{}/form", key);
}

std::optional<std::string> state_key(std::string_view name) {
  if (is_beside_graph(name)) return std::string(name);
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  std::string key;
  for (size_t i = 0; i < name.size(); ++i) {
    key.push_back(name[i]);
    if (name[i] != '.') continue;
    if (++i == name.size() || name[i] != '.')
      return std::nullopt;  // ".S" is an escaped slash, which no state key has
  }
  return key;
}

}  // namespace lockstep::checkpoint
