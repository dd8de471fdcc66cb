#pragma once

namespace lockstep::remote {

/// Adds the schemes s3:// and gs:// to base/files/file_store.h, once; whoever reads run files calls
/// it first.
void add_stores();

/// Makes all stores forget facts, cached content and keys: the next job of a process reads what is
/// there then. Nobody may be reading from a store.
void forget_stores();

}  // namespace lockstep::remote
