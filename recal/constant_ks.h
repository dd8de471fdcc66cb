#pragma once

#include <memory>

#include "recal/modifier.h"
#include "recal/param_selector.h"

namespace lockstep::recal {

struct ConstantKSOptions {
  ParamSelector params;
};

/// Keeps the zeros that the named weights have, for the whole run: for a model that came pruned.
/// Over parameters of a GradualKSModifier listed before it, it starts where that one ends and keeps
/// what it left.
class ConstantKS final : public Modifier {
 public:
  static constexpr std::string_view kTag = "ConstantKSModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  ConstantKS(ConstantKSOptions options, Place place)
      : Modifier(std::move(place)), options_(std::move(options)) {}

  std::string_view tag() const override { return kTag; }
  Window window() const override { return {}; }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  ConstantKSOptions options_;
};

}  // namespace lockstep::recal
