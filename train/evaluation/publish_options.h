#pragma once

#include <cstdint>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::train {

/// Section `export` of the run file: which saves are published as models for inference.
struct PublishOptions {
  bool after_evaluation = false;  ///< each save that was evaluated
  bool at_end = false;            ///< the final weights
  bool best = false;              ///< saved_models/best names the best evaluation's
  int64_t keep = 5;               ///< newest ones kept, beside the best; -1: all
  /// A preset asks for exports and no key of the section is written: exports of a network that has
  /// no form for them are left out.
  bool is_from_preset = false;
  std::string preset;                 ///< "preset: trainer", if that asks for exports
  bool ema = false;                   ///< with the averages of the weights; the run decides, no key
  std::string best_by = "eval.loss";  ///< or eval.accuracy; the run decides, no key

  bool any() const { return after_evaluation || at_end; }
};

PublishOptions read_publish_options(ConfigReader in);

}  // namespace lockstep::train
