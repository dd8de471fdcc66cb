#include "recal/group_claims.h"

#include <algorithm>

#include <fmt/format.h>

#include "recal/timeline.h"

namespace lockstep::recal {

void GroupClaims::add(const Modifier& writer, int group, StepRange steps, Faults* faults) {
  for (const Claim& claim : claims_) {
    const bool meets = group == kAllGroups || claim.group == kAllGroups || group == claim.group;
    const int64_t clash = std::max(steps.first, claim.steps.first);
    if (!meets || clash >= std::min(steps.last, claim.steps.last)) continue;
    const int shared = group == kAllGroups ? claim.group : group;
    faults->add(writer.place().fault(
        fmt::format("{} and {} ({}) both write {}{} at step {} (epoch {:.6g})", writer.tag(),
                    claim.writer->tag(), claim.writer->place().text(), quantity_, of_group(shared),
                    clash, static_cast<double>(clash) / static_cast<double>(steps_per_epoch_))));
  }
  claims_.push_back({&writer, group, steps});
}

}  // namespace lockstep::recal
