#include "train/evaluation/eval_result.h"

#include <cmath>
#include <utility>

namespace lockstep::train {

double number_of(const EvalResult& result, const std::string& metric) {
  return metric == "eval.loss" ? result.loss : result.accuracy.value_or(NAN);
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
  constexpr int64_t kMaxClasses = 100;
  std::vector<metrics::ValidationValue> numbers;
  for (const EvalValue& value : found)
    if (value.value.dim() == 0 || value.value.size(0) <= kMaxClasses)
      for (metrics::ValidationValue& number : numbers_of({value}))
        numbers.push_back(std::move(number));
  return numbers;
}

}  // namespace lockstep::train
