#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/overrides.h"
#include "daemon/config/program.h"

/// Commands of the tool `lockstep` that only look: no MPI, no GPU. They start no run and change no
/// run.
namespace lockstep::daemon {

/// Reads a run file, builds its model and data, compiles its recipe and makes a dry_run(). Returns
/// a description of the run. Throws Error with the faults found.
CommandResult check_command(const std::string& config_file, const std::vector<Override>& overrides);

/// Does the same without the dry run. Meant for a job that waits in a queue: an earlier job may
/// still have to write its warm start file.
void check_before_queue(const std::string& config_file, const std::vector<Override>& overrides);

struct PlanOptions {
  std::string file;  ///< a run file, or a bare recipe
  std::vector<Override> overrides;
  std::optional<int64_t> steps_per_epoch;  ///< needed for a bare recipe
  std::string stage;                       ///< for a bare recipe: show only this stage
  std::string svg_file;                    ///< if not empty: also write the drawing here
  std::string csv_file, json_file;         ///< if not empty: also write these for programs
};

/// Returns the recipe's timeline as text.
CommandResult plan_command(const PlanOptions& options);

/// Returns a Markdown table of all keys of the run file.
std::string run_file_reference();

}  // namespace lockstep::daemon
