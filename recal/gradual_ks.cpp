#include "recal/gradual_ks.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "recal/timeline_builder.h"

namespace lockstep::recal {
namespace {

const std::vector<std::string>& curve_names() {
  static const std::vector<std::string> names{"cubic", "linear", "inverse_cubic"};
  return names;
}

/// Below this the zeros bring no speed (the recipe language's own advice).
constexpr double kUsefulSparsity = 0.4;

void read_sparsities(YamlFields* in, GradualKSOptions* options) {
  const bool has_init = read_required(in, "init_sparsity", &options->init_sparsity, half_open(0, 1),
                                      "pruned fraction at start_epoch; usual: 0.05");
  const bool has_final =
      read_required(in, "final_sparsity", &options->final_sparsity, half_open(0, 1),
                    "pruned fraction from end_epoch on; usual: 0.6 to 0.95");
  if (has_init && has_final && options->final_sparsity < options->init_sparsity)
    in->fault("final_sparsity",
              fmt::format("'{}.final_sparsity' is {}, it must not be less than init_sparsity ({})",
                          in->path(), options->final_sparsity, options->init_sparsity));
}

}  // namespace

double curve(std::string_view inter_func, double done) {
  const double left = 1.0 - std::clamp(done, 0.0, 1.0);
  if (inter_func == "linear") return 1.0 - left;
  if (inter_func == "inverse_cubic") return 1.0 - std::cbrt(left);
  return 1.0 - left * left * left;
}

std::unique_ptr<Modifier> GradualKS::read(YamlFields* in, Place place) {
  GradualKSOptions options;
  options.params.read(in, "params");
  read_sparsities(in, &options);
  read_window(in, &options.start_epoch, &options.end_epoch);
  read_period(in, "update_frequency", &options.update_frequency,
              "epochs from one mask to the next; usual: 1.0");
  in->read_choice("inter_func", &options.inter_func, curve_names(),
                  "curve from init_sparsity to final_sparsity");
  in->read("leave_enabled", &options.leave_enabled, "whether masks are kept after end_epoch");
  in->done();
  return std::make_unique<GradualKS>(std::move(options), std::move(place));
}

std::string GradualKS::summary() const {
  return fmt::format("prunes {} from {} to {} ({}), every {} epochs{}", options_.params.text(),
                     options_.init_sparsity, options_.final_sparsity, options_.inter_func,
                     options_.update_frequency.text(),
                     options_.leave_enabled ? "" : ", then lets go");
}

double GradualKS::sparsity_of_update(int64_t k) const {
  const double span = options_.end_epoch.to_double() - options_.start_epoch.to_double();
  const double done = static_cast<double>(k) * options_.update_frequency.to_double() / span;
  return options_.init_sparsity +
         (options_.final_sparsity - options_.init_sparsity) * curve(options_.inter_func, done);
}

void GradualKS::contribute(TimelineBuilder* builder) const {
  const int64_t end_step = builder->step_of(options_.end_epoch);
  const int param_set = builder->claim_gradual_pruning(options_.params, end_step);
  for (const auto& [k, step] :
       builder->updates(options_.start_epoch, options_.update_frequency, options_.end_epoch))
    builder->add(step, ActionKind::kPrune, sparsity_of_update(k), param_set);
  builder->add(end_step, ActionKind::kPrune, options_.final_sparsity, param_set);
  if (!options_.leave_enabled) builder->add(end_step, ActionKind::kRelease, 0, param_set);
  if (options_.final_sparsity < kUsefulSparsity)
    builder->warn(fmt::format("final_sparsity {} is below {}: so few zeros bring no speed",
                              options_.final_sparsity, kUsefulSparsity));
}

}  // namespace lockstep::recal
