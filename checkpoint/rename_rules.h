#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"

namespace re2 {
class RE2;
}

namespace lockstep::checkpoint {

/// Rules that map the variable names of another program's file to the names used here.
///
/// Each rule has `from` and `to`. `from` is a name, or a prefix of names, with dots or slashes. It
/// may also be `re:PATTERN` (RE2), which matches from the start of the name as the file has it. The
/// matched part is replaced by `to`. In `to`, \1 is the first group of the pattern. The first
/// matching rule counts. A leading `model` of a name is ignored (plain_name()), except by a rule
/// whose `from` is exactly `model`.
class RenameRules {
 public:
  struct Renamed {
    size_t rule = 0;   ///< index of the rule that matched
    std::string name;  ///< new name in the form of plain_name()
  };

  /// Reads a list of {from, to}, or a map of from: to. In a map the longest `from` has priority. An
  /// invalid rule becomes a fault.
  static RenameRules read(ConfigReader* in, std::string_view key, std::string_view help);

  bool empty() const { return rules_.empty(); }
  size_t size() const { return rules_.size(); }
  const std::string& from(size_t rule) const { return rules_.at(rule).from; }
  /// Returns the name used here for a name of the file; nullopt if no rule matches.
  std::optional<Renamed> apply(const std::string& name) const;

 private:
  struct Rule {
    std::string from, to;
    std::shared_ptr<const re2::RE2> pattern;  // null: `from` is a name
    bool is_model_alone = false;              // `from` is exactly "model"
  };
  static Rule make_rule(const std::string& from, const std::string& to, std::string* fault);
  static std::optional<std::string> renamed_by(const Rule& rule, const std::string& name);

  std::vector<Rule> rules_;
};

}  // namespace lockstep::checkpoint
