#pragma once

#include <string>
#include <vector>

#include "daemon/config/flag_table.h"
#include "daemon/config/overrides.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep::daemon {

/// Flags of the Estimator framework as options of a command line: `--batch_size 64`,
/// `--batch_size=64`, `--debug`, `--debug=false`, and `--nodebug`, which takes no value.
class FlagOptions {
 public:
  explicit FlagOptions(CLI::App* app);

  /// Returns the flags that were given. Call it after the command line was parsed. Throws
  /// Error(kUsage) for a flag that is given twice or has a value of the wrong kind.
  std::vector<Override> overrides() const;

 private:
  struct OfFlag {
    const Flag* flag;
    CLI::Option* option;
    CLI::Option* negated;  ///< --nodebug; null if the flag is not a bool
  };

  std::vector<OfFlag> options_;
};

/// Throws Error(kUsage) for `--flag=`. CLI11 would take the next word as its value.
void refuse_empty_values(int argc, char** argv);

/// Returns a message about the unknown words of a command line, with the nearest option of each.
std::string unknown_words(const CLI::App& app);

}  // namespace lockstep::daemon
