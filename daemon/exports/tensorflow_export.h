#pragma once

#include <string>

#include "daemon/exports/manifest.h"

namespace lockstep::daemon {

/// The tensors of a save as TensorFlow files of one shard, `out_prefix`-STEP.index and
/// .data-00000-of-00001, and the state file `checkpoint` beside them: whole and dense, whatever
/// slices or masks the save holds them in. Their names and the object graph are those of saves, so
/// that tf.train.Checkpoint restores them.
///
/// The variables of the model, with `kEma` their moving averages in their place where there are
/// any, or with `kAll` everything (optimizer, averages, masks, positions, texts).
/// Throws Error(kUsage) if the files would stand in the folder of the save itself, whose state file
/// belongs to its run, or if the save holds what Lockstep does not write (lists of texts);
/// Error(kIo) if they cannot be written.
enum class SaveContent { kModel, kEma, kAll };
Written write_tensorflow(const std::string& save_prefix, const std::string& out_prefix,
                         SaveContent content);

}  // namespace lockstep::daemon
