#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// How one parameter is pruned over the run.
struct PruningClaim {
  /// Who lets the mask go, else who prunes last.
  const Modifier* pruner = nullptr;
  std::optional<StepRange> pruning;  ///< from the first to the last step at which masks grow
  std::optional<int64_t> released;   ///< first step at which the mask is let go; nothing: never
};

/// How a gradual modifier prunes a parameter.
struct GradualClaim {
  StepRange steps;
  double init_sparsity = 0;
  double final_sparsity = 0;
  bool leave_enabled = true;
};

/// Which modifiers prune which parameter when: one at a time. Gradual ones may follow one another;
/// one that keeps zeros begins where those listed before it end.
class PruningClaims {
 public:
  /// `pruner` must outlive this. False and a fault at its place if another has the parameter at one
  /// of the steps.
  bool add_gradual(const Modifier& pruner, int64_t param, const std::string& name,
                   const GradualClaim& claim, Diagnostics* faults);
  /// The step from which the zeros are kept: `first`, or where earlier gradual modifiers end if
  /// that is later. Nothing and a fault as above. `last`: where they are let go.
  std::optional<int64_t> add_constant(const Modifier& pruner, int64_t param,
                                      const std::string& name, int64_t first,
                                      std::optional<int64_t> last, Diagnostics* faults);

  /// Who left this parameter sparser than `claim` begins, and how sparse; nothing if nobody did.
  struct Fall {
    const Modifier* before = nullptr;
    double final_sparsity = 0;
  };
  std::optional<Fall> fall_before(int64_t param, const GradualClaim& claim) const;

  /// Nothing: nothing prunes it.
  std::optional<PruningClaim> find(int64_t param) const;

 private:
  struct Entry {
    const Modifier* pruner = nullptr;
    bool is_gradual = false;  ///< it chooses what is pruned; otherwise it keeps zeros
    StepRange steps;          ///< last: INT64_MAX where it has no end
    double final_sparsity = 0;
    std::optional<int64_t> released;
  };
  /// The first entry of the parameter that acts at one of the steps; null if none does.
  const Entry* overlapping(int64_t param, StepRange steps) const;
  /// True if some entry has the mask at the step.
  static bool is_held(const std::vector<Entry>& entries, int64_t step);

  std::map<int64_t, std::vector<Entry>> claims_;  // by parameter
};

}  // namespace lockstep::recal
