#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files/store.h"

/// Stores with the S3 interface, for s3:// and gs://.
namespace lockstep::remote {

/// Returns a store for each scheme: "s3" and "gs".
std::vector<std::pair<std::string, std::unique_ptr<files::FileStore>>> make_stores();

/// Adds the schemes s3:// and gs:// to base/files/files.h, once. A reader of run files must
/// call it first.
void add_stores();

/// Clears facts, cached content and keys of all stores. So the next job of a process reads the
/// present content. No thread may be reading from a store.
void forget_stores();

}  // namespace lockstep::remote
