#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/checkpoint_options.h"

namespace lockstep::daemon {

/// What a save says of the run that made it, beside weights and positions. A run that goes on from
/// the save must agree with it, or its steps would mean something else.
struct CheckpointMetadata {
  int64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t steps_per_epoch = 0;
  int64_t shuffle = 1;      ///< 0 or 1
  int64_t num_classes = 0;  ///< of the data; 0: unknown, the save is older than this fact
  std::string input_shape;  ///< of one sample, as JSON: [1, 8, 8]; empty: unknown
  std::string class_names;  ///< text_of_classes(); empty: the data name none
  std::string data_sha256;
  std::string timeline;  ///< canonical text
  std::string settings;  ///< "path=value" lines

  /// `_lockstep/...` entries over this object's own memory: what `saved` includes.
  StateList state(const checkpoint::CheckpointOptions& saved);
};

/// ant/bee: names of folders, by class number.
std::string text_of_classes(const std::vector<std::string>& names);
std::vector<std::string> classes_of_text(const std::string& text);

/// Throws Error(kConfig).everywhere() if the run may not go on from a save with these facts, naming
/// each and the way out. Collective in the sense that all ranks hold equal facts.
void require_compatible(const CheckpointMetadata& saved, const CheckpointMetadata& now);

/// Entries of the recipe's timeline that differ, for people; `step`: where the run goes on.
std::vector<std::string> recipe_changes(const CheckpointMetadata& saved,
                                        const CheckpointMetadata& now, int64_t step);

/// Settings that differ, for people: "optimizer.type was momentum, is sgd". Settings that change
/// nothing in training (where the run lies, who watches) are left out.
std::vector<std::string> changes_since(const CheckpointMetadata& saved,
                                       const CheckpointMetadata& now);

}  // namespace lockstep::daemon
