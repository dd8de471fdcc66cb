#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/samples.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {

/// What an evaluation found; the same on every rank.
struct EvalResult {
  double loss = 0;  ///< mean over all samples that are not damaged, or all tokens not ignored
  std::optional<double> accuracy;  ///< Loss::num_correct over all; nothing for values
  int64_t num_samples = 0;
  std::vector<EvalValue> metrics = {};  ///< what eval.metrics asks for
  bool is_abandoned = false;            ///< a rank was told to stop: the numbers mean nothing
  double seconds = 0;                   ///< rank: from the first sample to the sums of all ranks
  std::map<std::string, double> kpis = {};  ///< of callbacks, by name (docs/callbacks.md)
};

/// The number of eval.loss or eval.accuracy; NaN where there is none.
double number_of(const EvalResult& result, const std::string& metric);

/// "loss 0.2157, accuracy 0.9415, top_5 1.0000 over 359 samples", for a line that people read; of
/// metrics, the numbers of all samples.
std::string text_of(const EvalResult& result);

/// What metrics have found as single numbers, of all samples or of one class each. Numbers of pairs
/// of classes are left out.
std::vector<metrics::ValidationValue> numbers_of(const std::vector<EvalValue>& found);

/// What of an evaluation is shown: numbers of single classes only where there are few, as each is a
/// series and a curve of its own.
std::vector<metrics::ValidationValue> shown_numbers(const std::vector<EvalValue>& found);

}  // namespace lockstep::train
