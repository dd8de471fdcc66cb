#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::daemon {

/// One flag of the Estimator framework: another name for a key of the run file, and the value that
/// `preset: estimator` gives it.
struct Flag {
  enum Kind { kText, kList, kInteger, kNumber, kBool };

  std::string_view name;    ///< learning_rate
  std::string_view group;   ///< for --help and docs/flags.md
  Kind kind = kText;        ///< kList: texts with commas between
  std::string_view path;    ///< optimizer.learning_rate
  std::string_view preset;  ///< "": none
  std::string_view help;
  std::string_view second_path = {};  ///< also set, where its section is there
  std::string_view alias = {};        ///< another name
};

/// All of them, in the order in which they are applied.
std::span<const Flag> flag_table();

/// By name or alias; null where there is none.
const Flag* find_flag(std::string_view name);

/// "text", "comma-separated texts", "integer", "number", "true or false"
std::string_view kind_text(Flag::Kind kind);

/// The table as Markdown, for docs/flags.md.
std::string flags_reference();

}  // namespace lockstep::daemon
