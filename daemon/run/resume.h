#pragma once

#include <optional>
#include <string>

#include "daemon/run/training_context.h"

namespace lockstep::daemon {

struct ResumeOptions {
  std::string wanted = "auto";        ///< auto | never | a save's prefix
  bool accept_recipe_change = false;  ///< go on although the recipe's timeline is another one
};

/// Where a run goes on from.
struct Resumed {
  int64_t step = 0;
  std::string prefix;             ///< of the save
  bool is_own = false;            ///< the save lies in the run's own folder, under its own prefix
  double duration_s = 0;          ///< of reading it
  int64_t num_damaged_saves = 0;  ///< newer ones that were passed over
};

/// Finds the save that this run goes on from and loads it into the assembly; nothing if it starts
/// at step 0. Reads only. Collective.
///
/// wanted: "auto": the newest save of the run's folder that every rank can read; "never": none, and
/// the folder must hold none; else the prefix of a save, which must be the newest of the folder if
/// the folder has saves, because a later "auto" would go on from the newest. A save whose timeline
/// differs from this run's is refused, entry by entry, unless accept_recipe_change.
///
/// Throws on every rank: Error(kConfig) if the choice does not fit the folder or the save not the
/// run, Error(kBadData) if saves exist and none can be read, Error(kInputMissing) for a prefix that
/// names none.
std::optional<Resumed> resume(const ResumeOptions& options, TrainingContext& context);

/// After resume() and warm_start(): a moving average of the weights that no save has brought begins
/// with the weights. Rank 0 says so where the run goes on.
void begin_ema(TrainingContext& context, bool is_resumed);

/// Reads the save that was just committed back into the network, optimizer and masks (on all ranks;
/// a file that cannot be read is an error on all). Collective. Throws Error(kBadData).everywhere()
/// if that changed a bit: then the save does not hold what was trained.
void reload(const std::string& prefix, TrainingContext& context);

}  // namespace lockstep::daemon
