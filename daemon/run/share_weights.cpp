#include "daemon/run/share_weights.h"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <malloc.h>

#include "base/error.h"
#include "base/log.h"
#include "dist/replica/state_check.h"
#include "dist/shared/shared_flat_memory.h"

namespace lockstep::daemon {
namespace {

/// `auto` takes weights from here on (docs/performance.md, "One copy of the weights").
constexpr int64_t kLeastBytes = int64_t{1} << 20;

double mib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

int64_t weight_bytes(const TrainingContext& context) {
  int64_t num_bytes = 0;
  for (const Param& param : context.model->params())
    num_bytes += static_cast<int64_t>(param.tensor.nbytes());
  return num_bytes;
}

/// Why it cannot be; empty: it can, if the memory is there. From what all ranks have alike.
std::string hindrance(const TrainingContext& context, const dist::Communicator& gradients,
                      const dist::ProcessInfo& process) {
  const dist::SyncOptions& sync = context.config.sync;
  if (!sync.sync_replicas) return "each rank learns weights of its own (sync.sync_replicas: false)";
  if (!gradients.device().is_cpu()) return "the weights are on GPUs";
  if (process.num_nodes > 1) return fmt::format("the ranks are on {} hosts", process.num_nodes);
  if (!sync.shared_window) return "sync.shared_window is false";
  if (sync.comm_dtype != "fp32")
    return fmt::format("sync.comm_dtype: {} rounds what travels", sync.comm_dtype);
  if (context.model->runs_user_code())
    return "the network's code is the user's, who may write weights on each rank";
  return "";
}

/// Why not; empty: done.
std::string try_to_share(TrainingContext& context, dist::Communicator& gradients) {
  ParamTable& params = context.model->params();
  const int64_t num_bytes = dist::SharedFlatMemory::bytes_for(params, gradients.world_size());
  dist::SharedMemory memory = gradients.share_memory(num_bytes);
  if (memory.begin == nullptr) return memory.why_not;
  context.flat_params.move_to(
      std::make_unique<dist::SharedFlatMemory>(gradients, std::move(memory), params));
  context.recipe.share_weights();
  malloc_trim(0);  // what held the weights before
  return "";
}

void require_equal_weights(TrainingContext& context) {
  StateList weights;
  for (const Param& param : context.model->params())
    weights.push_back({.key = model_key(param.name), .tensor = param.tensor.detach()});
  dist::require_equal_state(context.control, "the weights before training", weights);
}

void tell(const TrainingContext& context, const std::string& why_not) {
  if (context.control.rank() != 0) return;
  const int num_ranks = context.control.world_size();
  if (why_not.empty())
    log::info("sync", fmt::format("the {} ranks share one copy of the weights ({:.1f} MiB), each "
                                  "updates its part (sync.share_weights)",
                                  num_ranks, mib(weight_bytes(context))));
  else
    log::info("sync", fmt::format("each rank has its own copy of the weights, as {}", why_not));
}

}  // namespace

void share_weights(TrainingContext& context, dist::Communicator& gradients,
                   const dist::ProcessInfo& process) {
  const std::string& wanted = context.config.sync.share_weights;
  if (wanted == "off" || gradients.world_size() == 1) return;
  std::string why_not = hindrance(context, gradients, process);
  if (why_not.empty() && wanted == "auto" && weight_bytes(context) < kLeastBytes)
    why_not = fmt::format("{:.1f} MiB stay in the cores' caches", mib(weight_bytes(context)));
  if (why_not.empty()) {
    require_equal_weights(context);
    why_not = try_to_share(context, gradients);
  }
  if (wanted == "on" && !why_not.empty())
    throw Error(ExitCode::kConfig, "sync",
                fmt::format("sync.share_weights: on cannot be: {}; use auto or off", why_not))
        .everywhere();
  tell(context, why_not);
}

}  // namespace lockstep::daemon
