#pragma once

#include "data/datasets/files_options.h"
#include "data/files/found_files.h"

namespace lockstep::data {

/// The files that the options name: patterns expanded, folders and stores listed, the format told.
/// Throws Error(kInputMissing or kConfig) as expand_files() and detect_format() do.
FoundFiles find_files(const FilesOptions& options);

}  // namespace lockstep::data
