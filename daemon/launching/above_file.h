#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/run_config.h"

namespace lockstep::daemon {

/// Settings on the command line of `lockstep run` and `lockstep launch` that override the run file.
struct AboveFile {
  std::vector<std::string> sets;   ///< texts after --set
  std::string estimator;           ///< of --estimator
  std::vector<std::string> flags;  ///< flags of the estimator, from after `--`
};

/// Returns the same settings as arguments for lockstepd: --set TEXT... --estimator LIB -- FLAGS.
std::vector<std::string> lockstepd_arguments(const AboveFile& above);

/// True if one of RunConfig's settings has this key.
bool is_given(const std::vector<std::string>& settings, const std::string& key);

/// Returns `above`, completed by each of `sets` (KEY=VALUE) whose key neither the run file nor
/// `above` sets. `settings`: from RunConfig. The added ones are weaker than `above`.
AboveFile with_missing(AboveFile above, const std::vector<std::string>& settings,
                       const std::vector<std::string>& sets);

/// Calls load_run_config() with these settings. Throws all faults as one Error(kConfig).
RunConfig load_run_config(const std::string& path, const AboveFile& above,
                          const std::optional<std::string>& text = {});

}  // namespace lockstep::daemon
