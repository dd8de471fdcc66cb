#pragma once

#include <memory>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Says how long to train: a bound and no action. It is no hard limit: a later end of another
/// modifier wins. A run begins at step 0 whatever its start says, which a note tells.
class EpochRange final : public Modifier {
 public:
  static constexpr std::string_view kTag = "EpochRangeModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  EpochRange(Window window, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), window_(window) {}

  Window window() const override { return window_; }
  void place_in(StageSpan* stage) override { stage->place(&window_); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  Window window_;
};

}  // namespace lockstep::recal
