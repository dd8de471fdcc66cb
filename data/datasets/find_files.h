#pragma once

#include "data/datasets/files_options.h"
#include "data/files/found_files.h"

namespace lockstep::data {

/// Finds the files that the options name: expands patterns, lists folders and stores, detects the
/// format. Throws Error(kInputMissing or kConfig) as expand_files() and detect_format() do.
FoundFiles find_files(const FilesOptions& options);

}  // namespace lockstep::data
