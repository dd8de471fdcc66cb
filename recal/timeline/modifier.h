#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/yaml/yaml_document.h"
#include "recal/time/moment.h"

namespace lockstep::recal {

class TimelineBuilder;

/// Where something stands in its source, kept after the YAML tree is gone, for faults that show up
/// only once the model is known.
struct Place {
  std::string file;
  int64_t line = 0;  ///< from 1; 0: unknown
  int64_t column = 0;
  std::string source_line;

  Fault fault(std::string message) const {
    return {file, line, column, std::move(message), source_line};
  }
  /// file:line
  std::string text() const;
};
Place place_of(const YamlDocument& document, const YAML::Node& node);

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
  Modifier(std::string tag, Place place) : tag_(std::move(tag)), place_(std::move(place)) {}
  virtual ~Modifier() = default;

  /// The recipe tag without its '!', as written: GradualKSModifier, or another name of it.
  const std::string& tag() const { return tag_; }
  const Place& place() const { return place_; }

  virtual Window window() const = 0;
  /// Makes the moments that it names those of the run, where it stands in a stage. Call once,
  /// before anything else.
  virtual void place_in(StageSpan* stage) = 0;
  /// What it does, in a few words, for `lockstep plan`.
  virtual std::string summary() const = 0;
  /// Adds its actions. Faults and warnings that need the model or the steps per epoch go to the
  /// builder as well.
  virtual void contribute(TimelineBuilder* builder) const = 0;
  /// Where each of its parameters gets summaries of its own (`log_types`).
  virtual ParamLogs param_logs() const { return ParamLogs::kByDefault; }

 private:
  std::string tag_;
  Place place_;
};

}  // namespace lockstep::recal
