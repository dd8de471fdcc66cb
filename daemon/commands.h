#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/config/overrides.h"

/// The commands of the tool `lockstep`: no MPI, no GPU, nothing is started and nothing of a run is
/// changed.
namespace lockstep::daemon {

/// Reads a run file, builds its model and data, compiles its recipe and makes a dry_run(). Throws
/// Error with the faults found; else says what would run.
CommandResult check_command(const std::string& config_file, const std::vector<Override>& overrides);

/// The same without the dry run: for a job that waits for others, which may write its warm start
/// file first.
void check_before_queue(const std::string& config_file, const std::vector<Override>& overrides);

struct PlanOptions {
  std::string file;  ///< a run file, or a bare recipe
  std::vector<Override> overrides;
  std::optional<int64_t> steps_per_epoch;  ///< needed for a bare recipe
  std::string stage;                       ///< of a bare recipe: only this one
  std::string svg_file;                    ///< also draw into this file
  std::string csv_file, json_file;         ///< also write these, for programs
};

/// The recipe's timeline as text.
CommandResult plan_command(const PlanOptions& options);

/// Every key of the run file as a Markdown table.
std::string run_file_reference();

}  // namespace lockstep::daemon
