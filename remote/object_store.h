#pragma once

/// Stores with the S3 interface, for s3:// and gs://.
namespace lockstep::remote {

/// Adds the schemes s3:// and gs:// to base/files/files.h, once. A reader of run files must
/// call it first.
void add_stores();

/// Clears facts, cached content and keys of all stores. So the next job of a process reads the
/// present content. No thread may be reading from a store.
void forget_stores();

}  // namespace lockstep::remote
