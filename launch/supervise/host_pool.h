#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launch/mpirun/hosts.h"

namespace lockstep::launch {

/// The hosts of a run, and which of them have failed. A host that cannot be reached, or is lost
/// with its ranks, is left out at once; one on which a rank was killed twice in a row, too. Hosts
/// come back only with a new supervisor.
class HostPool {
 public:
  /// `num_ranks` is what is wanted, `min_ranks` what the run may go on with. Without hosts all
  /// ranks run here, always. Throws Error(kUsage) if the numbers do not fit together.
  HostPool(std::vector<Host> hosts, int num_ranks, int min_ranks);

  /// What the last start told. A host is left out only while the others have slots for min_ranks.
  /// Returns those that are left out from now on.
  std::vector<std::string> note(const std::set<std::string>& lost,
                                const std::set<std::string>& killed_on);
  /// Where the next start runs, and with how many ranks.
  const std::vector<Host>& hosts() const { return hosts_; }
  int num_ranks() const;
  /// Whether too few slots are left, as a lost host could not be left out.
  bool is_short() const { return is_short_; }

 private:
  std::vector<Host> hosts_;
  int num_ranks_, min_ranks_;
  bool is_short_ = false;
  std::map<std::string, int> kills_in_a_row_;
};

}  // namespace lockstep::launch
