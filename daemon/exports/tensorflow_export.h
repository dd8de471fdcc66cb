#pragma once

#include <string>

#include "daemon/exports/manifest.h"

namespace lockstep::daemon {

/// Writes the tensors of a checkpoint as TensorFlow files of one shard. These are
/// `out_prefix`-STEP.index and .data-00000-of-00001, and the state file `checkpoint` in the same
/// folder. Tensors are whole and dense, even if the checkpoint stores slices or masks. Names and
/// object graph are those of Lockstep's checkpoints, so tf.train.Checkpoint restores them.
///
/// kModel: variables of the model. kEma: the same with moving averages instead of weights that have
/// one. kAll: everything (optimizer, averages, masks, positions, texts).
///
/// Throws Error(kUsage) if the files would be in the folder of the checkpoint itself, whose state
/// file belongs to its run. Throws it too for tensors that Lockstep does not write (lists of
/// texts). Throws Error(kIo) if the files cannot be written.
enum class SaveContent { kModel, kEma, kAll };
Written write_tensorflow(const std::string& save_prefix, const std::string& out_prefix,
                         SaveContent content);

}  // namespace lockstep::daemon
