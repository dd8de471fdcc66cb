#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/yaml_document.h"
#include "recal/modifier.h"

namespace lockstep::recal {

/// How one parameter is pruned over the run.
struct PruningClaim {
  const Modifier* pruner = nullptr;  ///< the last one
  bool is_gradual = false;           ///< it chooses what is pruned; otherwise it keeps zeros
  std::optional<StepRange> pruning;  ///< steps at which masks grow, from the gradual one
  std::optional<int64_t> released;   ///< step at which the mask is let go; nothing: never
};

/// Which modifiers prune which parameter: one gradual one, or one that keeps zeros, or the first
/// and behind it the second.
class PruningClaims {
 public:
  /// `pruner` must outlive this. False and a fault at its place if another has the parameter.
  bool add_gradual(const Modifier& pruner, int64_t param, const std::string& name, StepRange steps,
                   bool leave_enabled, Faults* faults);
  /// The step from which the zeros are kept: `first`, or where an earlier gradual modifier ends if
  /// that is later. Nothing and a fault as above. `last`: where they are let go.
  std::optional<int64_t> add_constant(const Modifier& pruner, int64_t param,
                                      const std::string& name, int64_t first,
                                      std::optional<int64_t> last, Faults* faults);

  /// Null: nothing prunes it.
  const PruningClaim* find(int64_t param) const;

 private:
  std::map<int64_t, PruningClaim> claims_;  // by parameter
};

}  // namespace lockstep::recal
