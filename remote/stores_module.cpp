#include "remote/stores_module.h"

#include <memory>
#include <string>
#include <utility>

#include "remote/object_store.h"

extern "C" __attribute__((visibility("default")))
const lockstep::remote::StoresTable lockstep_stores_module = {
    .build_id = LOCKSTEP_BUILD_ID,
    .make_stores =
        [](void (*add)(const char*, lockstep::files::FileStore*)) {
          for (auto& [scheme, store] : lockstep::remote::make_stores())
            add(scheme.c_str(), store.release());
        },
};
