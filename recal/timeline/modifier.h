#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/yaml/source_location.h"
#include "recal/time/train_time.h"

namespace lockstep::recal {

class TimelineBuilder;

/// Outputs in which the parameters of a modifier have their own summaries.
enum class ParamLogs {
  kByDefault,   ///< TensorBoard
  kEverywhere,  ///< TensorBoard and Prometheus
  kNowhere,
};

/// Entry of a recipe: options without state. Its effect is compiled into the timeline before step
/// 0. So equal ranks stay equal, and a resumed run does the same as an uninterrupted one.
class Modifier {
 public:
  Modifier(std::string tag, SourceLocation location)
      : tag_(std::move(tag)), location_(std::move(location)) {}
  virtual ~Modifier() = default;

  /// Recipe tag without its '!', as written: GradualKSModifier, or an alias of it.
  const std::string& tag() const { return tag_; }
  const SourceLocation& location() const { return location_; }

  virtual Window window() const = 0;
  /// Converts the modifier's moments from those of its stage to those of the run. Call it once,
  /// before anything else.
  virtual void place_in(StageSpan* stage) = 0;
  /// Short description of the effect, for `lockstep plan`.
  virtual std::string summary() const = 0;
  /// Adds the actions. Faults and warnings that need the model or the steps per epoch go to the
  /// builder as well.
  virtual void compile(TimelineBuilder* builder) const = 0;
  /// True if it makes masks. They may keep few weights, so gradients may be packed.
  virtual bool prunes() const { return false; }
  /// Outputs in which each of its parameters has its own summaries (`log_types`).
  virtual ParamLogs param_logs() const { return ParamLogs::kByDefault; }

 private:
  std::string tag_;
  SourceLocation location_;
};

}  // namespace lockstep::recal
