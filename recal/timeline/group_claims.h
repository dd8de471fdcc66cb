#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/params/param_groups.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Who writes one quantity of the parameter groups when: one writer of a group at a step.
class GroupClaims {
 public:
  /// `quantity`: for messages, "the learning rate".
  GroupClaims(std::string quantity, int64_t steps_per_epoch)
      : quantity_(std::move(quantity)), steps_per_epoch_(steps_per_epoch) {}

  /// The writer must outlive this. A fault at its place if another writes one of the groups at one
  /// of the steps.
  void add(const Modifier& writer, const ParamGroups& groups, StepRange steps, Diagnostics* faults);

 private:
  /// False, with a fault, if another writes the group (or all, kAllGroups).
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
