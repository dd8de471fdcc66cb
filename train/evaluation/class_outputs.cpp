// Brings samples and tokens, class numbers and soft labels to one form: a row of outputs and a
// class.
#include "train/evaluation/class_outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::train {

using data::TargetKind;

ClassOutputs class_outputs(const std::string& metric, const at::Tensor& outputs_BO,
                           const at::Tensor& targets_BY, const data::SampleSpec& spec) {
  const at::Tensor classes_BT =
      spec.target_kind == TargetKind::kSoft ? targets_BY.argmax(-1) : targets_BY;
  std::vector<int64_t> wanted = classes_BT.sizes().vec();
  wanted.push_back(spec.num_classes);
  if (outputs_BO.sizes() != at::IntArrayRef(wanted))
    throw Error(ExitCode::kConfig, "train",
                fmt::format("the network gives [{}] for {} samples, the metric {} needs [{}]: the "
                            "data has {}",
                            fmt::join(outputs_BO.sizes(), ", "), targets_BY.size(0), metric,
                            fmt::join(wanted, ", "), describe(spec)));
  ClassOutputs all{outputs_BO.flatten(0, -2), classes_BT.flatten()};
  if (!spec.may_ignore) return all;
  const at::Tensor counted_N = all.classes_N.ne(data::kIgnoredTarget).nonzero().flatten();
  return {all.outputs_NC.index_select(0, counted_N), all.classes_N.index_select(0, counted_N)};
}

void require_classes(const std::string& metric, const data::SampleSpec& spec) {
  if (spec.target_kind == TargetKind::kValues)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("eval.metrics: {} does not take {}, which are the data's targets; "
                            "leave it out",
                            metric, name_of(spec.target_kind)));
}

}  // namespace lockstep::train
