#include "remote/add_stores.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file_store.h"
#include "base/process_state.h"
#include "remote/object_store.h"

namespace lockstep::remote {

namespace {

/// Returns the stores of this process, which base/files owns.
const std::vector<ObjectStore*>& stores() {
  static const std::vector<ObjectStore*> all = [] {
    std::vector<ObjectStore*> added;
    const auto add = [&](const std::string& scheme, const std::function<Access()>& access) {
      auto store = std::make_unique<ObjectStore>(scheme, access);
      added.push_back(store.get());
      files::add_store(scheme, std::move(store));
    };
    add("s3", amazon_access);
    add("gs", google_access);
    return added;
  }();
  return all;
}

/// Reset between the jobs of a process.
const ProcessState objects_of_run("objects of stores", forget_stores);

}  // namespace

void add_stores() { (void)stores(); }

void forget_stores() {
  for (ObjectStore* const store : stores()) store->forget();
}

}  // namespace lockstep::remote
