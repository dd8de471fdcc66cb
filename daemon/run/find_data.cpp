#include "daemon/run/find_data.h"

#include "base/files/file_store.h"
#include "dist/agree.h"

namespace lockstep::daemon {
namespace {

std::string found_by(const data::DatasetPlan& plan) { return plan.find ? plan.find() : ""; }

}  // namespace

FoundData find_data(const data::DataOptions& options, dist::Communicator& control) {
  // Before the first access to an object store.
  files::set_store_limits(options.remote);
  // Only rank 0 lists files, so a shared file system or object store is asked once.
  FoundData found = dist::on_all_ranks(control, [&]() -> FoundData {
    if (control.rank() != 0) return {};
    return {found_by(options.train), options.eval ? found_by(*options.eval) : ""};
  });
  found.train = dist::broadcast_text(control, found.train);
  found.eval = dist::broadcast_text(control, found.eval);
  return found;
}

}  // namespace lockstep::daemon
