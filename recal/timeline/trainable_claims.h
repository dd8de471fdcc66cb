#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// A change of whether some parameters are trained, at the begin or the end of a claim.
struct TrainableChange {
  int64_t step = 0;
  bool trainable = true;
  const Modifier* modifier = nullptr;
  std::vector<int64_t> params;  ///< ascending, at least one
};

/// Conflict check of the modifiers that freeze and thaw parameters. A parameter without a claim is
/// trained, unless it is frozen at the start. Claims on one parameter may overlap if they say the
/// same.
class TrainableClaims {
 public:
  /// `names`: of all parameters of the model. frozen_at_start: indexes, ascending.
  TrainableClaims(std::vector<std::string> names, std::vector<int64_t> frozen_at_start)
      : names_(std::move(names)), frozen_at_start_(std::move(frozen_at_start)) {}

  /// `modifier` must outlive this. A fault at its place if another says otherwise of one of the
  /// parameters at one of the steps. steps.end may be INT64_MAX: to the end.
  void add(const Modifier& modifier, const std::vector<int64_t>& params, StepRange steps,
           bool trainable, Diagnostics* faults);

  /// All changes, by step, ends before beginnings. A fault if at one of them nothing is left to
  /// train.
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
