#include "recal/pruning_claims.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::recal {
namespace {

Fault two_pruners(const Modifier& second, const Modifier& first, const std::string& name,
                  std::string_view hint) {
  return second.place().fault(fmt::format("{} and {} ({}) both prune '{}'{}", second.tag(),
                                          first.tag(), first.place().text(), name, hint));
}

}  // namespace

bool PruningClaims::add_gradual(const Modifier& pruner, int64_t param, const std::string& name,
                                StepRange steps, bool leave_enabled, Faults* faults) {
  const std::optional<int64_t> released =
      leave_enabled ? std::nullopt : std::optional<int64_t>(steps.last);
  const auto [claim, is_first] = claims_.try_emplace(
      param,
      PruningClaim{.pruner = &pruner, .is_gradual = true, .pruning = steps, .released = released});
  if (is_first) return true;
  const Modifier& other = *claim->second.pruner;
  const std::string hint =
      claim->second.is_gradual
          ? ""
          : fmt::format("; list the {} behind it to keep what it leaves", other.tag());
  faults->add(two_pruners(pruner, other, name, hint));
  return false;
}

std::optional<int64_t> PruningClaims::add_constant(const Modifier& pruner, int64_t param,
                                                   const std::string& name, int64_t first,
                                                   std::optional<int64_t> last, Faults* faults) {
  const auto [claim, is_first] =
      claims_.try_emplace(param, PruningClaim{.pruner = &pruner, .released = last});
  if (is_first) return first;
  PruningClaim& earlier = claim->second;
  if (!earlier.is_gradual) {
    faults->add(two_pruners(pruner, *earlier.pruner, name, ""));
    return std::nullopt;
  }
  const int64_t from = std::max(first, earlier.pruning->last);
  if (last && *last <= from) return from;  // it never acts: the gradual one's word stands
  earlier.pruner = &pruner;
  earlier.is_gradual = false;
  // A mask that the gradual one lets go before this one begins is not kept in between.
  if (!earlier.released || *earlier.released >= from) earlier.released = last;
  return from;
}

const PruningClaim* PruningClaims::find(int64_t param) const {
  const auto claim = claims_.find(param);
  return claim == claims_.end() ? nullptr : &claim->second;
}

}  // namespace lockstep::recal
