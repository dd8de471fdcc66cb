#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/yaml/config_reader.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {

/// Section `eval` of the run file.
struct EvalOptions {
  int64_t every_epochs = 1;                            ///< 0: only at the end
  int64_t batch_size = 256;                            ///< samples of one forward pass on a rank
  std::optional<std::vector<MakeEvalMetric>> metrics;  ///< absent: perplexity of tokens
};

EvalOptions read_eval_options(ConfigReader in);

using EvalMetrics = std::vector<std::unique_ptr<const EvalMetric>>;

/// Those that the options ask for. `outputs_are_usual`: the loss is one of outputs and targets, so
/// that what is not asked for may be had of them, too. Throws Error(kConfig) if one cannot be had
/// of such data.
EvalMetrics make_eval_metrics(const EvalOptions& options, const data::SampleSpec& spec,
                              bool outputs_are_usual);

}  // namespace lockstep::train
