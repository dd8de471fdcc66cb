#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "daemon/control/requests.h"
#include "daemon/run/resume.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "train/records.h"

/// State of a run in the memory of its ranks, from which it continues when some of them are lost.
namespace lockstep::daemon {

/// State that a rank keeps in memory when others are lost, to continue with those that take their
/// places.
struct RunMemory {
  int64_t step = -1;     ///< updates done; -1: nothing is kept, as in a spare
  StateList state = {};  ///< own copies of the tensors; texts are in `texts`, in the same order
  std::vector<std::string> texts = {};
  std::string last_commit;                        ///< newest checkpoint of the run
  std::optional<train::StepLine> last_line;       ///< of steps.csv
  std::string config_text;                        ///< run file with which the run began
  std::chrono::steady_clock::time_point lost_at;  ///< when this rank noticed the loss
  OpenRequests requests;
  bool was_root = false;  ///< rank 0, which knows all requests
  bool is_used = false;   ///< training has continued from it
};

/// Returns the run file of the ranks that keep a state: the file may have changed since. Throws
/// Error(kUnavailable) if no rank keeps one. Collective.
std::string config_text_of(const RunMemory& memory, dist::Communicator& control);

/// Copies the state of the context into memory. Sends nothing.
RunMemory remember(TrainingContext& context);

/// Continues from memory: the rank that holds the newest state gives it to all. Throws
/// Error(kConfig) on every rank if recipe, data or network differ from those of the state.
/// Collective.
Resumed resume_from(const RunMemory& memory, TrainingContext& context);

}  // namespace lockstep::daemon
