#include "data/datasets/dataset.h"

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

}  // namespace lockstep::data
