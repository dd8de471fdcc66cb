#pragma once

#include <optional>
#include <string>

#include "daemon/control/requests.h"
#include "daemon/run/training_context.h"
#include "train/records.h"

/// Start of a run from stored weights: resume from its own checkpoint, or a warm start.
namespace lockstep::daemon {

struct ResumeOptions {
  std::string wanted = "auto";        ///< auto | never | prefix of a checkpoint
  bool accept_recipe_change = false;  ///< resume even if the recipe's timeline has changed
};

/// State that a run continues from: a checkpoint, or the memory of ranks after others were lost.
struct Resumed {
  int64_t step = 0;
  std::string prefix;        ///< of the checkpoint
  bool is_own = false;       ///< the checkpoint is in the run's own folder, under its own prefix
  bool is_unstored = false;  ///< its store lacks it: only copies on the hosts have it
  double duration_s = 0;     ///< to read the checkpoint; in memory, since the loss was noticed
  int64_t num_damaged_saves = 0;                  ///< newer damaged checkpoints that were skipped
  bool is_from_memory = false;                    ///< of RunMemory, not a checkpoint
  std::optional<train::StepLine> last_line = {};  ///< of RunMemory
  OpenRequests requests = {};                     ///< of RunMemory
};

/// Finds the checkpoint to resume from and loads it into the context. Returns nullopt if the run
/// starts at step 0. Reads only. Collective.
///
/// Values of ResumeOptions::wanted:
///   - "auto": the newest checkpoint of the run's folder that every rank can read.
///   - "never": none; the folder must not contain any.
///   - the prefix of a checkpoint. It must be the newest of the run's folder if that has any.
///     Otherwise a later "auto" would resume from another one.
///
/// A checkpoint with another timeline is refused, entry by entry, unless accept_recipe_change.
///
/// Throws on every rank. Error(kConfig): the choice does not fit the folder, or the checkpoint does
/// not fit the run. Error(kBadData): checkpoints exist but none can be read. Error(kInputMissing):
/// no checkpoint has the given prefix.
std::optional<Resumed> resume(const ResumeOptions& options, TrainingContext& context);

/// Reads the weights of the teacher that train.distill_teacher names, if the recipe distils. Rank 0
/// logs the source. Call it before resume(), which compares the teacher with that of the
/// checkpoint. Collective; throws as warm_start().
void load_teacher(TrainingContext& context);

/// Reads the checkpoint that was just committed back into the network, optimizer and masks, on all
/// ranks. A file that cannot be read is an error on all. Collective. Throws
/// Error(kBadData).everywhere() if any bit of the state changed: then the checkpoint does not
/// contain what was trained.
void reload(const std::string& prefix, TrainingContext& context);

/// Loads the model's variables from checkpoint.warm_start_ckpt, if the run file names one. Loads
/// the variables in checkpoint_restore_scopes that are not in checkpoint_exclude_scopes. Step,
/// optimizer and all other state stay those of a new run. Collective; reads only. Rank 0 logs what
/// was loaded and what was not.
///
/// checkpoint/import/load_weights.h describes the accepted files and how values are matched to
/// variables. Every requested variable must exist with the right shape. The ranks compare their
/// weights afterwards.
///
/// `is_resumed`: the run resumed from its own checkpoint, which takes precedence. Then only a line
/// is logged.
///
/// Throws on every rank. Error(kInputMissing, kUsage): there is no such checkpoint. kConfig: a
/// scope matches nothing, or variables are missing or have another form. kBadData: damage.
void warm_start(TrainingContext& context, bool is_resumed);

}  // namespace lockstep::daemon
