#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/yaml/source_location.h"
#include "recal/time/train_time.h"

namespace lockstep::recal {

class TimelineBuilder;

/// Where the parameters of a modifier have summaries of their own.
enum class ParamLogs {
  kByDefault,   ///< TensorBoard
  kEverywhere,  ///< Prometheus too
  kNowhere,
};

/// One entry of a recipe: options and no state. What it does is compiled into the timeline before
/// step 0, so equal ranks stay equal and a resumed run takes the path of an unbroken one.
class Modifier {
 public:
  Modifier(std::string tag, SourceLocation location)
      : tag_(std::move(tag)), location_(std::move(location)) {}
  virtual ~Modifier() = default;

  /// The recipe tag without its '!', as written: GradualKSModifier, or another name of it.
  const std::string& tag() const { return tag_; }
  const SourceLocation& location() const { return location_; }

  virtual Window window() const = 0;
  /// Makes the moments that it names those of the run, where it stands in a stage. Call once,
  /// before anything else.
  virtual void place_in(StageSpan* stage) = 0;
  /// What it does, in a few words, for `lockstep plan`.
  virtual std::string summary() const = 0;
  /// Adds its actions. Diagnostics and warnings that need the model or the steps per epoch go to
  /// the builder as well.
  virtual void compile(TimelineBuilder* builder) const = 0;
  /// Whether it makes masks, which may leave few weights: gradients may then travel packed.
  virtual bool prunes() const { return false; }
  /// Where each of its parameters gets summaries of its own (`log_types`).
  virtual ParamLogs param_logs() const { return ParamLogs::kByDefault; }

 private:
  std::string tag_;
  SourceLocation location_;
};

}  // namespace lockstep::recal
