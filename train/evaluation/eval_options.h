#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {

/// Section `eval` of the run file.
struct EvalOptions {
  int64_t every_epochs = 1;           ///< 0: only at the end, and at saves with on_save
  bool on_save = false;               ///< each save is evaluated; what is evaluated is saved first
  int64_t batch_size = 256;           ///< samples of one forward pass on a rank
  std::optional<int64_t> eval_freq;   ///< batches of one evaluation; nothing: the whole data set
  std::string eval_freq_origin = {};  ///< who gave it: "line 4", "flag --eval_freq"; for messages
  double eval_throttle_secs = 0;      ///< a save within so long after the last evaluation has none
  std::optional<double> every_secs;   ///< training time between two evaluations, by rank 0's clock
  int64_t patience = 0;  ///< evaluations without improvement that end the run; 0: never
  bool strict_restore_on_switch = false;  ///< read the save before and after each evaluation
  std::optional<std::vector<MakeEvalMetric>> metrics;  ///< absent: perplexity of tokens
  std::optional<bool> use_ema;                         ///< absent: where there is an EMA
};

EvalOptions read_eval_options(ConfigReader in);

/// How many samples one evaluation takes, from the data set's first on: eval_freq batches of
/// batch_size, or all. The same at every world size; where the last batch is cut short, so it is.
/// Throws Error(kConfig) if the data set has not so many batches, Error(kBadData) if it is empty.
int64_t num_eval_samples(const EvalOptions& options, int64_t num_samples);

using EvalMetrics = std::vector<std::unique_ptr<const EvalMetric>>;

/// Those that the options ask for. `outputs_are_usual`: the loss is one of outputs and targets, so
/// that what is not asked for may be had of them, too. Throws Error(kConfig) if one cannot be had
/// of such data.
EvalMetrics make_eval_metrics(const EvalOptions& options, const data::SampleSpec& spec,
                              bool outputs_are_usual);

}  // namespace lockstep::train
