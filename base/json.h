#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace lockstep {

/// Returns a value as JSON, nullopt as null.
template <typename T>
nlohmann::ordered_json json_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

/// Returns JSON as text: one line, or indented. Invalid UTF-8 is replaced, since JSON must be
/// UTF-8.
template <typename Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
