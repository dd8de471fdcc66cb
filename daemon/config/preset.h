#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "base/yaml/config_reader.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/overrides.h"

/// Meaning of flags and of `preset` for a run file, and flags as options of a command line.
namespace lockstep::daemon {

/// Resolves the flags from after `--` that are not keys of the estimator. A name that is in the
/// flag table becomes that flag's overrides. --nodeep becomes the value false of an estimator's
/// flag `deep`.
void resolve_flags(const std::vector<FieldDoc>& fields, std::vector<Override>* overrides);

/// Returns the document of a run that has no run file.
YamlDocument document_of_flags(Diagnostics* faults);
/// Returns the overrides that a run without a run file needs in addition to its settings. These
/// select the estimator's own data if the settings name no data. Throws Error(kUsage), naming what
/// is missing, unless the settings name a folder, a network and data.
std::vector<Override> complete_run_of_flags(const YAML::Node& root);

/// Returns the defaults of the preset as overrides that are weaker than the file; empty if the
/// settings do not name it. `null` in the file removes a default.
std::vector<Override> preset_defaults(const YAML::Node& root, const std::vector<FieldDoc>& fields);

/// Removes keys of the flag table that have no effect with the other settings, such as adam_beta1
/// without adam. With the preset all such keys are removed, otherwise only those that flags set.
/// `fields`: keys that are read with these settings. Returns a note for each removed key that is
/// not a default of the preset.
std::vector<std::string> take_unused(const std::vector<FieldDoc>& fields, YamlDocument* document);

/// Returns every flag and key with its value or default, for flags::Frozen. `settings`: lines of
/// flat_settings().
flags::Values flag_values(const std::vector<std::string>& settings,
                          const std::vector<FieldDoc>& fields);

}  // namespace lockstep::daemon

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
