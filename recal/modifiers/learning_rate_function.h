#pragma once

#include <memory>
#include <string>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/timeline/timeline.h"

namespace lockstep::recal {

struct LearningRateFunctionOptions {
  Window window;
  std::string lr_func;  ///< linear, cosine, cyclic_linear
  double init_lr = 0;
  double final_lr = 0;
  Period cycle{.epochs = Decimal(1)};  ///< cyclic_linear
  bool names_cycle = false;
  ParamGroups groups;
};

/// Leads the learning rate from init_lr to final_lr, anew at each step; cyclic_linear does so again
/// and again. After the end final_lr holds, or the last rate of the cycle.
class LearningRateFunction final : public Modifier {
 public:
  static constexpr std::string_view kTag = "LearningRateFunctionModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  LearningRateFunction(LearningRateFunctionOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place(&options_.window); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  bool is_cyclic() const { return options_.lr_func == "cyclic_linear"; }

  LearningRateFunctionOptions options_;
};

}  // namespace lockstep::recal
