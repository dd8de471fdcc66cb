#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Pruning of one parameter over the whole run.
struct PruningClaim {
  /// Modifier that releases the mask, else the last one that prunes.
  const Modifier* pruner = nullptr;
  std::optional<StepRange> pruning;  ///< from the first to the last step at which the mask grows
  std::optional<int64_t> released;   ///< step at which the mask is released; nullopt: never
};

/// Pruning of a parameter by one gradual modifier.
struct GradualClaim {
  StepRange steps;
  double init_sparsity = 0;
  double final_sparsity = 0;
  bool leave_enabled = true;
};

/// Conflict check of pruning: at each step at most one modifier prunes a parameter. Gradual ones
/// may follow one another. One that keeps zeros begins at the end of those listed before it.
class PruningClaims {
 public:
  /// Adds a claim. Returns false, with a fault at the pruner's place, if another one has the
  /// parameter at one of the steps. `pruner` must outlive this object.
  bool add_gradual(const Modifier& pruner, int64_t param, const std::string& name,
                   const GradualClaim& claim, Diagnostics* faults);
  /// Adds a claim. Returns the step from which the zeros are kept: `first`, or the end of earlier
  /// gradual modifiers if that is later. Returns nullopt, with a fault, on a conflict. last: the
  /// step of the release.
  std::optional<int64_t> add_constant(const Modifier& pruner, int64_t param,
                                      const std::string& name, int64_t first,
                                      std::optional<int64_t> last, Diagnostics* faults);

  /// Earlier modifier that leaves the parameter sparser than `claim` begins; nullopt if none does.
  struct Fall {
    const Modifier* before = nullptr;
    double final_sparsity = 0;
  };
  std::optional<Fall> fall_before(int64_t param, const GradualClaim& claim) const;

  /// Pruning of a parameter; nullopt if nothing prunes it.
  std::optional<PruningClaim> find(int64_t param) const;

 private:
  struct Entry {
    const Modifier* pruner = nullptr;
    bool is_gradual = false;  ///< true: chooses what is pruned; false: keeps zeros
    StepRange steps;          ///< end: INT64_MAX if it has no end
    double final_sparsity = 0;
    std::optional<int64_t> released;
  };
  /// First entry of the parameter that acts at one of the steps; null if none does.
  const Entry* overlapping(int64_t param, StepRange steps) const;
  /// True if some entry has the mask at the step.
  static bool is_held(const std::vector<Entry>& entries, int64_t step);

  std::map<int64_t, std::vector<Entry>> claims_;  // by parameter
};

}  // namespace lockstep::recal
