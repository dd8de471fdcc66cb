#pragma once

#include "base/files/store.h"

/// Interface between a library and the module of stores, which is opened only if a path of a store
/// is used. So the library does not link libcurl.
namespace lockstep::remote {

/// Table of base/module.h.
struct StoresTable {
  const char* build_id;
  /// Calls add(scheme, store) for every scheme. The receiver owns the store. The module has a log
  /// of its own, whose lines name this rank.
  void (*make_stores)(int rank, int world_size,
                      void (*add)(const char* scheme, files::FileStore* store));
};

constexpr const char* kStoresSymbol = "lockstep_stores_module";  // extern "C" const StoresTable
constexpr const char* kStoresFile = "lockstep_stores.so";

}  // namespace lockstep::remote
