#include "train/step/share_weights.h"

#include <memory>
#include <utility>

#include <fmt/format.h>
#include <malloc.h>

#include "base/error.h"
#include "base/log.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/replica_check.h"

namespace lockstep::train {
namespace {

/// Least size of weights for `auto` (docs/design/performance.md, "One copy of the weights").
constexpr int64_t kLeastBytes = int64_t{1} << 20;

double mib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

int64_t weight_bytes(const ParamTable& params) {
  int64_t num_bytes = 0;
  for (const Param& param : params) num_bytes += static_cast<int64_t>(param.tensor.nbytes());
  return num_bytes;
}

std::string hindrance(const ShareWeightsParts& parts) {
  const dist::SyncOptions& sync = parts.options;
  if (!sync.sync_replicas) return "each rank trains its own weights (sync.sync_replicas: false)";
  if (!parts.gradients.device().is_cpu()) return "the weights are on GPUs";
  if (parts.process.num_nodes > 1)
    return fmt::format("the ranks are on {} hosts", parts.process.num_nodes);
  if (!sync.shared_window) return "sync.shared_window is false";
  if (sync.comm_dtype != "fp32")
    return fmt::format("sync.comm_dtype: {} rounds gradients", sync.comm_dtype);
  if (parts.model.runs_user_code() || parts.may_write_weights)
    return "the network is user code, which may write weights on each rank";
  // With copies, the comparison of replicas would detect such a write; with one copy it cannot.
  if (parts.has_users_hooks)
    return "the estimator's hooks are user code, which may write weights on one rank";
  return "";
}

/// Shares the weights; returns the reason if that is impossible, else an empty text.
std::string try_to_share(const ShareWeightsParts& parts) {
  const ParamTable& params = parts.model.params();
  dist::SharedMemory memory = parts.gradients.share_memory(
      dist::SharedFlatMemory::bytes_for(params, parts.gradients.world_size()));
  // Null on all ranks, so all keep their copies.
  if (memory.begin == nullptr) return memory.why_not;
  parts.flat_params.move_to(
      std::make_unique<dist::SharedFlatMemory>(parts.gradients, std::move(memory), params));
  parts.recipe.share_weights();
  malloc_trim(0);  // returns the weights' old memory to the system
  return "";
}

void require_equal_weights(const ShareWeightsParts& parts) {
  StateList weights;
  for (const Param& param : parts.model.params())
    weights.push_back({.key = param.name, .tensor = param.tensor.detach()});
  dist::require_equal_state(parts.control, "the weights before training", weights);
}

void tell(const ShareWeightsParts& parts, const std::string& why_not) {
  if (parts.control.rank() != 0) return;
  if (why_not.empty())
    log::info("sync",
              fmt::format("the {} ranks share one copy of the weights ({:.1f} MiB), each "
                          "updates its part (sync.share_weights)",
                          parts.control.world_size(), mib(weight_bytes(parts.model.params()))));
  else
    log::info("sync", fmt::format("each rank has its own copy of the weights, as {}", why_not));
}

void refuse_if(const std::string& why_not) {
  if (why_not.empty()) return;
  throw Error(ExitCode::kConfig, "sync",
              fmt::format("sync.share_weights: on is not possible: {}; use auto or off", why_not))
      .everywhere();
}

/// Returns the reason for a copy on each rank, independent of memory; empty: the weights can be
/// shared. Equal on all ranks.
std::string why_own_copies(const ShareWeightsParts& parts) {
  const std::string& wanted = parts.options.share_weights;
  if (wanted == "off") return "sync.share_weights is off";
  const std::string why = hindrance(parts);
  const int64_t num_bytes = weight_bytes(parts.model.params());
  if (why.empty() && wanted == "auto" && num_bytes < kLeastBytes)
    return fmt::format("{:.1f} MiB fit in the cores' caches", mib(num_bytes));
  return why;
}

}  // namespace

void require_sharable(const ShareWeightsParts& parts) {
  if (parts.options.share_weights == "on") refuse_if(why_own_copies(parts));
}

void share_weights(const ShareWeightsParts& parts) {
  const std::string& wanted = parts.options.share_weights;
  if (wanted == "off" || parts.gradients.world_size() == 1) return;  // nothing to log
  std::string why_not = why_own_copies(parts);
  if (why_not.empty()) {
    // One copy replaces all, so the ranks' weights must be equal before.
    require_equal_weights(parts);
    why_not = try_to_share(parts);
  }
  if (wanted == "on") refuse_if(why_not);
  tell(parts, why_not);
}

}  // namespace lockstep::train
