// Collective start of NCCL. Local work runs in agreed(), which turns one rank's fault into an error
// of all ranks.
#include "dist/nccl/start_communicator.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "dist/agree.h"
#include "dist/nccl/nccl_communicator.h"

namespace lockstep::dist::nccl {
namespace {

/// Runs one rank's part of a collective start; its fault becomes every rank's.
void agreed(Communicator& control, const std::function<void()>& part) {
  std::optional<Error> fault;
  try {
    part();
  } catch (const Error& error) {
    fault = error;
  } catch (const std::exception& error) {
    fault = Error(ExitCode::kUnavailable, "dist.nccl", error.what());
  }
  throw_if_any(control, fault);
}

}  // namespace

std::unique_ptr<Communicator> start_communicator(Communicator& control,
                                                 std::shared_ptr<GpuCalls> gpu,
                                                 const WatchLimits& limits) {
  // Every stage ends with an agreement, so that no rank waits inside NCCL for one that has failed.
  agreed(control, [&] { gpu->require_usable(); });
  std::string id;
  agreed(control, [&] {
    const auto on_device = gpu->use_device();
    if (control.rank() == 0) id = gpu->make_unique_id();
  });
  id = broadcast_text(control, id);
  std::unique_ptr<Communicator> made;
  agreed(control, [&] {
    const auto on_device = gpu->use_device();
    auto comm = std::make_shared<WatchedComm>(gpu, limits);
    comm->start(id, control.world_size(), control.rank());
    made = std::make_unique<NcclCommunicator>(std::move(gpu), std::move(comm));
  });
  return made;
}

}  // namespace lockstep::dist::nccl
