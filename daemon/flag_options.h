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

/// The flags of the Estimator framework as options of a command line: `--batch_size 64`,
/// `--batch_size=64`, `--debug`, `--debug=false`; `--nodebug`, which takes no value.
class FlagOptions {
 public:
  explicit FlagOptions(CLI::App* app);

  /// What was given, after the command line was parsed. Throws Error(kUsage) for a flag that is
  /// given twice or whose value is not of its kind.
  std::vector<Override> overrides() const;

 private:
  struct OfFlag {
    const Flag* flag;
    CLI::Option* option;
    CLI::Option* negated;  ///< --nodebug; null for what is no truth value
  };

  std::vector<OfFlag> options_;
};

/// Throws Error(kUsage) for `--flag=`, of which CLI11 takes the next word as the value.
void refuse_empty_values(int argc, char** argv);

/// Says which words of a command line are unknown, with the nearest option of each.
std::string unknown_words(const CLI::App& app);

}  // namespace lockstep::daemon
