#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Change of trainability of some parameters, at the start or the end of a claim.
struct TrainableChange {
  int64_t step = 0;
  bool trainable = true;
  const Modifier* modifier = nullptr;
  std::vector<int64_t> params;  ///< ascending, at least one
};

/// Conflict check of the modifiers that freeze and unfreeze parameters. A parameter without a claim
/// is trained, unless it is frozen at the start. Claims on one parameter may overlap if they agree.
class TrainableClaims {
 public:
  /// names: all parameters of the model. frozen_at_start: indexes, ascending.
  TrainableClaims(std::vector<std::string> names, std::vector<int64_t> frozen_at_start)
      : names_(std::move(names)), frozen_at_start_(std::move(frozen_at_start)) {}

  /// Adds a claim. Adds a fault at the modifier's place if another one contradicts it for some
  /// parameter and step. steps.end may be INT64_MAX (no end). `modifier` must outlive this object.
  void add(const Modifier& modifier, const std::vector<int64_t>& params, StepRange steps,
           bool trainable, Diagnostics* faults);

  /// All changes by step, ends before starts. Adds a fault if a change leaves nothing to train.
  std::vector<TrainableChange> changes(Diagnostics* faults) const;

 private:
  struct Claim {
    const Modifier* modifier;
    std::vector<int64_t> params;
    StepRange steps;
    bool trainable;
  };
  bool is_trainable(int64_t param, int64_t step) const;
  void add_ends(std::vector<TrainableChange>* changes) const;
  void require_some(const TrainableChange& change, Diagnostics* faults) const;

  std::vector<std::string> names_;
  std::vector<int64_t> frozen_at_start_;
  std::vector<Claim> claims_;
};

}  // namespace lockstep::recal
