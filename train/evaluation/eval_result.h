#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/samples.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {

/// Results of an evaluation; the same on every rank.
struct EvalResult {
  double loss = 0;  ///< mean over all samples without damaged ones, or all tokens without ignored
                    ///< ones
  std::optional<double> accuracy;  ///< Loss::num_correct / samples; nullopt for values
  int64_t num_samples = 0;
  std::vector<EvalValue> metrics = {};  ///< those of eval.metrics
  bool is_abandoned = false;            ///< a rank was told to stop; all values are undefined
  double seconds = 0;                   ///< rank: from the first sample to the sums of all ranks
  std::map<std::string, double> kpis = {};  ///< of callbacks, by name (docs/callbacks.md)
};

/// Returns the value of eval.loss or eval.accuracy; NaN if there is none.
double number_of(const EvalResult& result, const std::string& metric);

/// Formats a result for the log: "loss 0.2157, accuracy 0.9415, top_5 1.0000 over 359 samples".
/// Metrics: only values of all samples.
std::string text_of(const EvalResult& result);

/// Results of metrics as single numbers, of all samples or of one class each. Values of pairs of
/// classes are omitted.
std::vector<metrics::ValidationValue> numbers_of(const std::vector<EvalValue>& found);

/// Values to export; per-class values only for few classes, since each becomes a separate series
/// and curve.
std::vector<metrics::ValidationValue> shown_numbers(const std::vector<EvalValue>& found);

}  // namespace lockstep::train
