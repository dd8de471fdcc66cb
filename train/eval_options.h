#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "train/eval_metrics.h"

/// Sections `eval` and `export` of the run file.
namespace lockstep::train {

/// Section `eval` of the run file.
struct EvalOptions {
  int64_t every_epochs = 1;  ///< 0: only at the end, and at saves with on_save
  bool on_save = false;      ///< each save is evaluated, and each evaluation needs a save first
  int64_t batch_size = 256;  ///< samples of one forward pass on a rank
  std::optional<int64_t> eval_freq;   ///< batches of one evaluation; nullopt: the whole data set
  std::string eval_freq_origin = {};  ///< its source for messages: "line 4", "flag --eval_freq"
  double eval_throttle_secs = 0;  ///< seconds after an evaluation's start; saves in them have none
  std::optional<double> every_secs;  ///< training between two evaluations, by rank 0's clock
  int64_t patience = 0;              ///< evaluations without improvement that end the run; 0: never
  bool strict_restore_on_switch = false;  ///< read the checkpoint before and after each evaluation
  std::optional<std::vector<MakeEvalMetric>> metrics;  ///< absent: perplexity of tokens
  std::optional<bool> use_ema;                         ///< absent: true if there is an EMA
};

EvalOptions read_eval_options(ConfigReader in);

/// Number of samples of one evaluation, from the data set's first on: eval_freq batches of
/// batch_size, or all. Equal at every world size; a partial last batch stays partial. Throws
/// Error(kConfig) if the data set has fewer batches, Error(kBadData) if it is empty.
int64_t num_eval_samples(const EvalOptions& options, int64_t num_samples);

using EvalMetrics = std::vector<EvalMetric>;

/// Creates the metrics that the options request. outputs_are_usual: the loss is computed from
/// outputs and targets, so defaults may use them too. Throws Error(kConfig) if such data do not
/// allow a metric.
EvalMetrics make_eval_metrics(const EvalOptions& options, const data::SampleSpec& spec,
                              bool outputs_are_usual);

/// Section `export` of the run file: selects the checkpoints that are published for inference.
struct PublishOptions {
  bool after_evaluation = false;  ///< each evaluated checkpoint
  bool at_end = false;            ///< the final weights
  bool best = false;              ///< saved_models/best points to the best evaluation's export
  bool onnx = false;              ///< also as ONNX
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
