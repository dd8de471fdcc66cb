#pragma once

namespace lockstep::remote {

/// Adds the schemes s3:// and gs:// to base/files/file_store.h, once; whoever reads run files calls
/// it first.
void add_stores();

}  // namespace lockstep::remote
