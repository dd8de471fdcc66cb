#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/config_reader.h"
#include "daemon/config/overrides.h"

/// Flags on the command line: the table of the Estimator framework, and those of an estimator.
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

/// Returns "string", "comma-separated strings", "integer", "number" or "true or false".
std::string_view kind_text(Flag::Kind kind);

/// Returns the table as Markdown, for docs/flags.md.
std::string flags_reference();

// The estimator on the command line: --estimator=LIB, and the estimator's own flags after `--`.

/// Removes `--` and all words after it from the command line, and returns these words. The words
/// themselves stay valid in argv.
std::vector<std::string> take_flags(int* argc, char** argv);

/// Parses the words of take_flags() into overrides of section `estimator`. Accepted forms: `--width
/// 64`, `--width=64`, and `--deep` alone, which means true. Throws Error(kUsage) for words that are
/// not flags.
std::vector<Override> parse_flags(const std::vector<std::string>& words);

/// Settings on a command line that override the run file.
struct AboveFile {
  std::vector<std::string> sets = {};   ///< texts after --set
  std::string estimator = {};           ///< LIB of --estimator=LIB, which sets estimator.path
  std::vector<std::string> flags = {};  ///< flags of the estimator: words of take_flags()
};

/// Returns all overrides of a command line in the order of application. Throws Error(kUsage).
std::vector<Override> overrides_of(const AboveFile& above);

/// Returns the values that the program's own code passed to flags::set(). The environment overrides
/// them.
std::vector<Override> overrides_of_program();

/// Throws Error(kUsage), with the nearest names, for a flag that is not a key of section
/// `estimator`.
void require_known_flags(const std::vector<Override>& overrides,
                         const std::vector<FieldDoc>& fields);

}  // namespace lockstep::daemon
