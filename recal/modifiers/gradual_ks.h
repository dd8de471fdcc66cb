#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/yaml/yaml_fields.h"
#include "recal/masks/mask_kind.h"
#include "recal/timeline/modifier.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

/// Sparsity is the pruned fraction of one parameter's weights, or of all of them together where the
/// mask rule is global, in [0, 1).
struct GradualKSOptions {
  ParamSelector params;
  double init_sparsity = 0;   ///< in force from the window's start
  double final_sparsity = 0;  ///< in force from its end
  Window window;
  Period update_frequency;           ///< from one mask to the next
  std::string inter_func = "cubic";  ///< recal/time/curve.h
  bool leave_enabled = true;         ///< masks are kept after the end
  MaskRule mask_rule;
  std::string score_type = "magnitude";  ///< the only one
  bool momentum_buffer_reset = false;    ///< moments become 0 with each new mask
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Prunes the smallest weights of each named parameter, more at each update. Update k falls on the
/// first step at or after start + k * update_frequency and takes the curve's value there, so that
/// the values of a window in epochs do not depend on the batch size; the last one falls on the end.
class GradualKS final : public Modifier {
 public:
  static constexpr std::string_view kTag = "GradualKSModifier";
  /// The same with one threshold over all its parameters.
  static constexpr std::string_view kGlobalTag = "GlobalMagnitudePruningModifier";
  /// One modifier, or one a target where `final_sparsity` is a map of sparsities and parameters.
  static std::vector<std::unique_ptr<Modifier>> read(YamlFields* in, const Place& place);

  GradualKS(GradualKSOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place(&options_.window); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  void warn_of_unusual_values(TimelineBuilder* builder, size_t num_masks) const;

  GradualKSOptions options_;
};

}  // namespace lockstep::recal
