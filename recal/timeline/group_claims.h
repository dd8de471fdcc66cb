#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/params/param_groups.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Conflict check for one quantity of the parameter groups: at each step a group has one writer.
class GroupClaims {
 public:
  /// quantity: name for messages, such as "the learning rate".
  GroupClaims(std::string quantity, int64_t steps_per_epoch)
      : quantity_(std::move(quantity)), steps_per_epoch_(steps_per_epoch) {}

  /// Adds a claim. Adds a fault at the writer's place if another one writes one of the groups at
  /// one of the steps. The writer must outlive this object.
  void add(const Modifier& writer, const ParamGroups& groups, StepRange steps, Diagnostics* faults);

 private:
  /// Returns false, with a fault, if another one writes the group (or kAllGroups).
  bool add(const Modifier& writer, int group, StepRange steps, Diagnostics* faults);
  struct Claim {
    const Modifier* writer;
    int group;
    StepRange steps;
  };
  std::string quantity_;
  int64_t steps_per_epoch_;
  std::vector<Claim> claims_;
};

}  // namespace lockstep::recal
