#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/program.h"
#include "train/records.h"

/// The command `lockstep curves`: shows a run from its folder alone. The run may have ended, be in
/// progress or have been killed.
namespace lockstep::cli {

/// Facts of summary.json that are shown next to the curves.
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
  std::optional<RunEnd> end;           ///< nullopt: the run wrote no summary, or resumed after it
};

/// Reads <folder>/train/steps.csv and, if it is there, <folder>/summary.json. Throws Error:
/// kInputMissing without the folder or steps.csv; kBadData if one of the files is damaged
/// (file:line) or no step is recorded.
RunRecord read_run(const std::filesystem::path& folder);

/// Returns one line: how far the run came and how it ended.
std::string run_facts(const RunRecord& run);

/// Returns the facts and the last record. Text plots follow: loss (mean per column), sparsity and
/// learning rate over epochs.
std::string curves_text(const RunRecord& run);

/// Returns the same as an SVG drawing: the recorded loss in a light colour, its moving mean on top.
std::string curves_svg(const RunRecord& run);

/// Returns the text for the run in `folder`. Also writes the drawing to svg_file unless that is
/// empty.
daemon::CommandResult curves_command(const std::filesystem::path& folder,
                                     const std::string& svg_file);

}  // namespace lockstep::cli
