#include "recal/modifiers/constant_ks.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> ConstantKS::read(YamlFields* in, Place place) {
  ConstantKSOptions options;
  options.params.read(in, "params");
  read_window(in, &options.window, Bounds::kOptional);
  read_params_strict(in, &options.params_strict);
  read_log_types(in, &options.logs);
  read_minus_one(in, "update_frequency", "masks are kept at every step");
  in->done();
  return std::make_unique<ConstantKS>(std::move(options), in->path(), std::move(place));
}

std::string ConstantKS::summary() const {
  return fmt::format("keeps the zeros of {}", options_.params.text());
}

void ConstantKS::contribute(TimelineBuilder* builder) const {
  const auto& [start, end] = options_.window;
  if (start && end && !builder->steps_of(options_.window)) return;
  const int64_t first = start ? builder->step_of(*start) : 0;
  const std::optional<int64_t> last =
      end && !end->is_run_end() ? std::optional<int64_t>(builder->step_of(*end)) : std::nullopt;
  for (const auto& [step, param_set] :
       builder->claim_constant_pruning({options_.params, options_.params_strict}, first, last)) {
    builder->add(step, ActionKind::kKeepZeros, 0, param_set);
    if (last) builder->add(*last, ActionKind::kRelease, 0, param_set);
  }
}

}  // namespace lockstep::recal
