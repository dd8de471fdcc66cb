#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/run_config.h"

namespace lockstep::daemon {

/// What stands above the run file on the command line of `lockstep run` and `lockstep launch`.
struct AboveFile {
  std::vector<std::string> sets;   ///< texts after --set
  std::string estimator;           ///< of --estimator
  std::vector<std::string> flags;  ///< of the estimator, from behind `--`
};

/// The same for lockstepd: --set TEXT... --estimator LIB -- FLAGS.
std::vector<std::string> lockstepd_arguments(const AboveFile& above);

/// Whether one of RunConfig's settings is of this key.
bool is_given(const std::vector<std::string>& settings, const std::string& key);

/// `above`, and below it each of `sets` (KEY=VALUE) of which the run file and what stands above it
/// say nothing. `settings`: RunConfig's.
AboveFile with_missing(AboveFile above, const std::vector<std::string>& settings,
                       const std::vector<std::string>& sets);

/// load_run_config() with these; throws what it finds as one Error(kConfig).
RunConfig load_run_config(const std::string& path, const AboveFile& above,
                          const std::optional<std::string>& text = {});

}  // namespace lockstep::daemon
