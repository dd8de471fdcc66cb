#include "recal/timeline/group_claims.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::recal {

void GroupClaims::add(const Modifier& writer, const ParamGroups& groups, StepRange steps,
                      Diagnostics* faults) {
  if (groups.all()) {
    add(writer, kAllGroups, steps, faults);
    return;
  }
  for (const int group : groups.numbers)
    if (!add(writer, group, steps, faults)) return;  // one fault is enough
}

bool GroupClaims::add(const Modifier& writer, int group, StepRange steps, Diagnostics* faults) {
  bool is_free = true;
  for (const Claim& claim : claims_) {
    const bool meets = group == kAllGroups || claim.group == kAllGroups || group == claim.group;
    const int64_t clash = std::max(steps.first, claim.steps.first);
    if (!meets || clash >= std::min(steps.end, claim.steps.end)) continue;
    // A modifier claims each of its groups separately.
    if (claim.writer == &writer) continue;
    const int shared = group == kAllGroups ? claim.group : group;
    faults->add(writer.location().fault(fmt::format(
        "{} and {} ({}) both write {}{} at step {} (epoch {:.6g})", writer.tag(),
        claim.writer->tag(), claim.writer->location().text(), quantity_, of_group(shared), clash,
        static_cast<double>(clash) / static_cast<double>(steps_per_epoch_))));
    is_free = false;
  }
  // Also after a conflict, so that later modifiers are compared with this one too.
  claims_.push_back({&writer, group, steps});
  return is_free;
}

}  // namespace lockstep::recal
