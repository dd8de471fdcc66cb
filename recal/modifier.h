#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/decimal.h"
#include "base/yaml_document.h"
#include "base/yaml_fields.h"

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

/// A part of the run in epochs: start inclusive, end exclusive. Nothing: no such bound.
struct Window {
  std::optional<Decimal> start;
  std::optional<Decimal> end;
};

/// One entry of a recipe: options and no state. What it does is compiled into the timeline before
/// step 0, so equal ranks stay equal and a resumed run takes the path of an unbroken one.
class Modifier {
 public:
  explicit Modifier(Place place) : place_(std::move(place)) {}
  virtual ~Modifier() = default;

  /// The recipe tag without its '!': GradualKSModifier.
  virtual std::string_view tag() const = 0;
  virtual Window window() const = 0;
  /// What it does, in a few words, for `lockstep plan`.
  virtual std::string summary() const = 0;
  /// Adds its actions. Faults and warnings that need the model or the steps per epoch go to the
  /// builder as well.
  virtual void contribute(TimelineBuilder* builder) const = 0;

  const Place& place() const { return place_; }

 private:
  Place place_;
};

/// Largest epoch and shortest period that a recipe may name; they keep every step number far inside
/// 64 bits.
inline constexpr double kMaxEpoch = 1e6;
inline constexpr double kMinPeriod = 1e-6;

/// Reads a required epoch: a decimal, 0 to kMaxEpoch.
bool read_epoch(YamlFields* in, std::string_view key, Decimal* value, std::string_view help);
/// Reads required `start_epoch` and `end_epoch`; a fault unless start < end.
bool read_window(YamlFields* in, Decimal* start, Decimal* end);
/// Reads a required length in epochs: a decimal, kMinPeriod to kMaxEpoch.
bool read_period(YamlFields* in, std::string_view key, Decimal* value, std::string_view help);
/// Reads a required number in the range.
bool read_required(YamlFields* in, std::string_view key, double* value, Range range,
                   std::string_view help);

}  // namespace lockstep::recal
