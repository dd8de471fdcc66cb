#include "data/datasets/dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::data {

std::string name_of(TargetKind kind) {
  switch (kind) {
    case TargetKind::kClass:
      return "class numbers";
    case TargetKind::kSoft:
      return "soft labels";
    case TargetKind::kValues:
      return "values";
    case TargetKind::kTokens:
      break;
  }
  return "tokens";
}

std::string describe(const SampleSpec& spec) {
  const char* counted = spec.target_kind == TargetKind::kValues   ? "values a target"
                        : spec.target_kind == TargetKind::kTokens ? "tokens in the vocabulary"
                                                                  : "classes";
  return fmt::format("inputs [{}]{} and {} {}", fmt::join(spec.input_shape, ", "),
                     spec.input_dtype == at::kFloat ? "" : " of tokens", spec.num_classes, counted);
}

Samples no_samples(const SampleSpec& spec) {
  std::vector<int64_t> inputs{0}, targets{0};
  inputs.insert(inputs.end(), spec.input_shape.begin(), spec.input_shape.end());
  // Tokens predict tokens of the same shape; other targets but classes have num_classes numbers.
  if (spec.target_kind == TargetKind::kTokens)
    targets = inputs;
  else if (spec.target_kind != TargetKind::kClass)
    targets.push_back(spec.num_classes);
  const bool are_numbers =
      spec.target_kind == TargetKind::kClass || spec.target_kind == TargetKind::kTokens;
  return {at::empty(inputs, spec.input_dtype),
          at::empty(targets, are_numbers ? at::kLong : at::kFloat)};
}

}  // namespace lockstep::data
