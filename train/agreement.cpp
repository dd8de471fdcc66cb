#include "train/agreement.h"

#include <fmt/format.h>

#include "dist/agree.h"
#include "dist/replica_check.h"
#include "train/stopwatch.h"

namespace lockstep::train {

void Agreement::require(std::string_view when) {
  Stopwatch watch;
  std::vector<dist::NamedTensor> tensors;
  std::string texts;
  for (const StateEntry& entry : state_()) {
    if (entry.tensor.defined()) tensors.push_back({entry.key, entry.tensor.detach()});
    if (entry.text != nullptr) texts += fmt::format("{}: {}\n", entry.key, *entry.text);
  }
  dist::require_equal(control_, fmt::format("the state {}", when), texts);
  dist::require_equal_replicas(control_, fmt::format("the state {}", when), tensors);
  ++num_checks_;
  seconds_ += watch.lap();
}

}  // namespace lockstep::train
