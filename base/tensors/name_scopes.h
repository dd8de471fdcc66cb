#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/config_reader.h"

namespace lockstep {

/// A variable's name as names are compared: with slashes, without `model/` before it and slashes
/// after it.
std::string plain_name(std::string_view name);

/// Scopes of a model's variables: each means all variables whose names begin with it, as
/// TensorFlow's scopes do: `blocks/1` means blocks/1/conv and blocks/10/conv, `blocks/1/` the first
/// alone. Names may be written with dots or slashes, with `model/` before them or without.
class NameScopes {
 public:
  NameScopes() = default;
  /// As written: items may hold several scopes with commas between.
  explicit NameScopes(const std::vector<std::string>& texts);

  /// Reads a list, or a text with commas; an empty scope is a fault. Absent: no scopes.
  static NameScopes read(ConfigReader* in, std::string_view key, std::string_view help);

  bool empty() const { return scopes_.empty(); }
  /// Whether some scope means this variable; `name` with dots or slashes.
  bool cover(std::string_view name) const;
  /// Throws Error(kConfig) naming the run file's key, the scope and the five names nearest to it,
  /// if a scope covers none of the names.
  void require_matches(std::string_view key, const std::vector<std::string>& names,
                       const std::vector<std::string>& frozen = {}) const;
  /// "a, b/c"
  std::string text() const;

 private:
  std::vector<std::string> scopes_;
};

}  // namespace lockstep
