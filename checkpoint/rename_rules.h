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

/// What variables of another program's file are called here.
///
/// Each rule has `from` and `to`. `from` is a name or the part that names stand below, with dots or
/// slashes; or `re:PATTERN` (RE2), which matches from the start of the name as it stands in the
/// file. What `from` matched is replaced by `to`, in which \1 is what the pattern's first group
/// matched. Of several rules that match a name the first one counts. `model` in front of names does
/// not count (plain_name()), but a rule whose `from` is `model` alone means it.
class RenameRules {
 public:
  struct Renamed {
    size_t rule = 0;   ///< which one matched
    std::string name;  ///< as plain_name() gives it
  };

  /// Reads a list of {from, to}, or a map of from: to, of which the longest `from` counts first.
  /// What is no rule becomes a fault.
  static RenameRules read(ConfigReader* in, std::string_view key, std::string_view help);

  bool empty() const { return rules_.empty(); }
  size_t size() const { return rules_.size(); }
  const std::string& from(size_t rule) const { return rules_.at(rule).from; }
  /// What a name of the file is here; nothing if no rule matches it.
  std::optional<Renamed> apply(const std::string& name) const;

 private:
  struct Rule {
    std::string from, to;
    std::shared_ptr<const re2::RE2> pattern;  // null: a name
    bool is_model_alone = false;              // `from` is no more than "model"
  };
  static Rule make_rule(const std::string& from, const std::string& to, std::string* fault);
  static std::optional<std::string> renamed_by(const Rule& rule, const std::string& name);

  std::vector<Rule> rules_;
};

}  // namespace lockstep::checkpoint
