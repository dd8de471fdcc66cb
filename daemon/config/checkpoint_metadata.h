#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/checkpoint_options.h"

/// Facts about a run in its checkpoints, and the settings of a run as text.
namespace lockstep::daemon {

/// Facts about its run that a checkpoint contains besides weights and positions. A run that resumes
/// from it must agree with these facts, or its steps would have another meaning.
struct CheckpointMetadata {
  int64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t steps_per_epoch = 0;
  int64_t shuffle = 1;      ///< 0 or 1
  int64_t num_classes = 0;  ///< of the data; 0: unknown, the checkpoint is older than this field
  std::string input_shape;  ///< of one sample, as JSON: [1, 8, 8]; empty: unknown
  std::string class_names;  ///< text_of_classes(); empty: the data have no class names
  std::string data_sha256;
  std::string teacher_sha256;  ///< of the weights of a teacher that is not a copy; empty: none
  std::string timeline;        ///< canonical text
  std::string settings;        ///< "path=value" lines

  /// Returns `_lockstep/...` entries that refer to this object's own memory. `saved` selects them.
  StateList state(const checkpoint::CheckpointOptions& saved);
};

/// Encodes class names, in the order of their numbers, as "ant/bee"; and decodes them.
std::string text_of_classes(const std::vector<std::string>& names);
std::vector<std::string> classes_of_text(const std::string& text);

/// Throws Error(kConfig).everywhere() if the run may not resume from a checkpoint with these facts.
/// The message names each difference and the way out. Call it with equal facts on all ranks; it
/// sends nothing.
void require_compatible(const CheckpointMetadata& saved, const CheckpointMetadata& now);

/// Returns the differing settings, for people: "optimizer.type was momentum, is sgd". Settings
/// without effect on training (folders, monitoring) are left out.
std::vector<std::string> changes_since(const CheckpointMetadata& saved,
                                       const CheckpointMetadata& now);

/// Returns the run's settings for people, one line per section in the given order: "optimizer:
/// learning_rate=0.1, type=momentum". `settings`: lines "section.key=value" (flat_settings()). A
/// line longer than a few lines of a terminal is cut and ends with the number of omitted keys.
std::vector<std::string> settings_by_section(const std::vector<std::string>& settings);

/// Returns all settings as Markdown: a block of code.
std::string settings_text(const std::vector<std::string>& settings);

}  // namespace lockstep::daemon
