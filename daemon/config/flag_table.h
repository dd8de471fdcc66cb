#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::daemon {

/// Flag of the Estimator framework: another name for a key of the run file, and the value that
/// `preset: estimator` gives to that key.
struct Flag {
  enum Kind { kText, kList, kInteger, kNumber, kBool };

  std::string_view name;    ///< learning_rate
  std::string_view group;   ///< section in --help and docs/flags.md
  Kind kind = kText;        ///< kList: texts separated by commas
  std::string_view path;    ///< optimizer.learning_rate
  std::string_view preset;  ///< "": none
  std::string_view help;
  std::string_view second_path = {};  ///< key that is also set if its section exists
  std::string_view alias = {};        ///< another name
};

/// Returns all flags in the order of application.
std::span<const Flag> flag_table();

/// Finds a flag by name or alias. Returns null if there is none.
const Flag* find_flag(std::string_view name);

/// Returns "text", "comma-separated texts", "integer", "number" or "true or false".
std::string_view kind_text(Flag::Kind kind);

/// Returns the table as Markdown, for docs/flags.md.
std::string flags_reference();

}  // namespace lockstep::daemon
