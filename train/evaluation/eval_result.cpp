#include "train/evaluation/eval_result.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace lockstep::train {

double number_of(const EvalResult& result, const std::string& metric) {
  // NaN is never better, so a missing accuracy never counts as the best.
  return metric == "eval.loss" ? result.loss : result.accuracy.value_or(NAN);
}

std::string text_of(const EvalResult& result) {
  std::string text = fmt::format("loss {:.4f}", result.loss);
  if (result.accuracy) text += fmt::format(", accuracy {:.4f}", *result.accuracy);
  for (const auto& [name, value] : result.metrics)
    if (value.dim() == 0) text += fmt::format(", {} {:.4f}", name, value.item<double>());
  return text + fmt::format(" over {} samples", result.num_samples);
}

std::vector<metrics::ValidationValue> numbers_of(const std::vector<EvalValue>& found) {
  std::vector<metrics::ValidationValue> numbers;
  for (const auto& [name, value] : found) {
    if (value.dim() == 0) numbers.push_back({name, std::nullopt, value.item<double>()});
    if (value.dim() != 1) continue;
    for (int64_t i = 0; i < value.size(0); ++i)
      numbers.push_back({name, i, value[i].item<double>()});
  }
  return numbers;
}

std::vector<metrics::ValidationValue> shown_numbers(const std::vector<EvalValue>& found) {
  // Each class becomes a time series in Prometheus and a curve in TensorBoard.
  constexpr int64_t kMaxClasses = 100;
  std::vector<metrics::ValidationValue> numbers;
  for (const EvalValue& value : found)
    if (value.value.dim() == 0 || value.value.size(0) <= kMaxClasses)
      for (metrics::ValidationValue& number : numbers_of({value}))
        numbers.push_back(std::move(number));
  return numbers;
}

}  // namespace lockstep::train
