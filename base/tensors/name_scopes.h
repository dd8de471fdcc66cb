#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/config_reader.h"

namespace lockstep {

/// Returns a variable's name in the form for comparisons: with slashes, without a leading `model/`
/// and trailing slashes.
std::string plain_name(std::string_view name);

/// Scopes of a model's variables. Each means all variables whose names begin with it, as in
/// TensorFlow: `blocks/1` means blocks/1/conv and blocks/10/conv, `blocks/1/` only the first. Names
/// may have dots or slashes, with or without a leading `model/`.
class NameScopes {
 public:
  NameScopes() = default;
  /// Takes scopes as written; an item may have several, separated by commas.
  explicit NameScopes(const std::vector<std::string>& texts);

  /// Reads a list, or a text with commas. An empty scope is a fault. A missing key means no scopes.
  static NameScopes read(ConfigReader* in, std::string_view key, std::string_view help);

  bool empty() const { return scopes_.empty(); }
  /// True if a scope means this variable; `name` has dots or slashes.
  bool cover(std::string_view name) const;
  /// Throws Error(kConfig) if a scope covers none of the names. The message has the run file's key,
  /// the scope and the five nearest names. It says so if the scope covers only `frozen` ones.
  void require_matches(std::string_view key, const std::vector<std::string>& names,
                       const std::vector<std::string>& frozen = {}) const;
  /// Returns, for instance, "a, b/c".
  std::string text() const;

 private:
  std::vector<std::string> scopes_;
};

}  // namespace lockstep
