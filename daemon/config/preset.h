#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "base/yaml/config_reader.h"
#include "daemon/config/flag_table.h"
#include "daemon/config/overrides.h"

/// Meaning of flags and of `preset` for a run file.
namespace lockstep::daemon {

/// What a flag of the table sets, and what it brings where the file says nothing of it: a format
/// for --train_metadata, the run's name for --model_dir. Throws Error(kUsage) for a value that is
/// not of the flag's kind. `origin`: "flag --batch_size".
std::vector<Override> overrides_of_flag(const Flag& flag, const std::string& value,
                                        const std::string& origin);

/// Puts in place of each flag from behind `--` that no estimator has what a flag of the table of
/// that name sets, and of --nodeep the value false of a flag `deep` of the estimator.
void resolve_flags(const std::vector<FieldDoc>& fields, std::vector<Override>* overrides);

/// The document of a run without a run file.
YamlDocument document_of_flags(Diagnostics* faults);
/// What such a run has beside what its settings say: an estimator's own data, where none are named.
/// Throws Error(kUsage), naming what is missing, unless they name a folder, a network and data.
std::vector<Override> complete_run_of_flags(const YAML::Node& root);

/// The defaults of the preset, if the settings name it, as overrides that stand below the file.
/// `null` in the file keeps one out.
std::vector<Override> preset_defaults(const YAML::Node& root, const std::vector<FieldDoc>& fields);

/// Takes out keys of the table that have no effect beside what else is chosen (adam_beta1 without
/// adam): with the preset all, else those that flags gave. `fields`: what is read with these
/// settings. Returns a note for each that is no default of the preset.
std::vector<std::string> take_unused(const std::vector<FieldDoc>& fields, YamlDocument* document);

/// Every flag and key with its value or default, for flags::Frozen. `settings`: lines of
/// flat_settings().
flags::Values flag_values(const std::vector<std::string>& settings,
                          const std::vector<FieldDoc>& fields);

}  // namespace lockstep::daemon
