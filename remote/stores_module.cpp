#include "remote/stores_module.h"

#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "remote/object_store.h"

extern "C" __attribute__((visibility("default")))
const lockstep::remote::StoresTable lockstep_stores_module = {
    .build_id = LOCKSTEP_BUILD_ID,
    .make_stores =
        [](int rank, int world_size, void (*add)(const char*, lockstep::files::FileStore*)) {
          lockstep::log::configure({.rank = rank, .world_size = world_size});
          for (auto& [scheme, store] : lockstep::remote::make_stores())
            add(scheme.c_str(), store.release());
        },
};
