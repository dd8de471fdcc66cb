#pragma once

#include <cstdint>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::train {

/// Section `export` of the run file: selects the checkpoints that are published for inference.
struct PublishOptions {
  bool after_evaluation = false;  ///< each evaluated checkpoint
  bool at_end = false;            ///< the final weights
  bool best = false;              ///< saved_models/best points to the best evaluation's export
  int64_t keep = 5;               ///< number of newest exports to keep, besides the best; -1: all
  /// True if exports come from a preset and the section has no written key. A network without an
  /// export format is then skipped.
  bool is_from_preset = false;
  std::string preset;                 ///< "preset: trainer", if it requests exports
  bool ema = false;                   ///< export averaged weights; set by the run, no key
  std::string best_by = "eval.loss";  ///< or eval.accuracy; set by the run, no key

  bool any() const { return after_evaluation || at_end; }
};

PublishOptions read_publish_options(ConfigReader in);

}  // namespace lockstep::train
