#include "base/tensors/params.h"

#include <algorithm>

namespace lockstep {

// Parameters have dots, checkpoint keys have slashes.
std::string slashed(std::string dotted_name) {
  std::replace(dotted_name.begin(), dotted_name.end(), '.', '/');
  return dotted_name;
}

std::shared_ptr<void> DeferredVariables::watch(TensorWatcher watcher) {
  // Watchers whose handles are gone are removed here, not during announce().
  std::erase_if(watchers_, [](const auto& each) { return each.expired(); });
  auto handle = std::make_shared<TensorWatcher>(std::move(watcher));
  watchers_.push_back(handle);
  return handle;
}

void DeferredVariables::announce(const std::string& name, const at::Tensor& tensor) {
  const auto watchers = watchers_;  // a watcher may add watchers or drop its handle
  for (const auto& each : watchers)
    if (const auto watcher = each.lock()) (*watcher)(name, tensor);
}

}  // namespace lockstep
