#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "train/steps_csv.h"

/// What a run did, from its folder alone: `lockstep curves`. The run may be over, under way or cut
/// off.
namespace lockstep::daemon {

/// The facts of summary.json that stand beside the curves.
struct RunEnd {
  std::string exit_reason;
  int64_t steps = 0;
  double epochs = 0;
  int world_size = 1;
  double sparsity = 0;
  std::optional<double> test_accuracy;
};

struct RunRecord {
  std::string name;                    ///< of the folder
  std::vector<train::StepLine> lines;  ///< at least one
  std::optional<RunEnd> end;           ///< nothing: the run wrote no summary, or went on since
};

/// Reads <folder>/train/steps.csv and, if it is there, <folder>/summary.json. Throws Error:
/// kInputMissing without the folder or steps.csv; kBadData if one of the files is damaged
/// (file:line) or no step is recorded.
RunRecord read_run(const std::filesystem::path& folder);

/// One line: how far the run came and how it ended.
std::string run_facts(const RunRecord& run);

/// The facts, the last record, then loss (mean of a column), sparsity and learning rate over epochs
/// as plots of characters.
std::string curves_text(const RunRecord& run);

/// The same as an SVG drawing: the loss as recorded, light, below its moving mean.
std::string curves_svg(const RunRecord& run);

/// Text of the run in `folder`; draws into svg_file too unless that is empty.
CommandResult curves_command(const std::filesystem::path& folder, const std::string& svg_file);

}  // namespace lockstep::daemon
