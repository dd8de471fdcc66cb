#include "recal/constant_ks.h"

#include <fmt/format.h>

#include "recal/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> ConstantKS::read(YamlFields* in, Place place) {
  ConstantKSOptions options;
  options.params.read(in, "params");
  in->done();
  return std::make_unique<ConstantKS>(std::move(options), std::move(place));
}

std::string ConstantKS::summary() const {
  return fmt::format("keeps the zeros of {}", options_.params.text());
}

void ConstantKS::contribute(TimelineBuilder* builder) const {
  for (const auto& [step, param_set] : builder->claim_constant_pruning(options_.params))
    builder->add(step, ActionKind::kKeepZeros, 0, param_set);
}

}  // namespace lockstep::recal
