#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/files/files.h"

/// Stores with the S3 interface, for s3:// and gs://.
namespace lockstep::remote {

/// Page of a ListObjectsV2 answer.
struct ListingPage {
  std::vector<files::FileFacts> objects;  ///< `path` is the key
  std::string next_token;                 ///< of the next page; empty: none
};

/// Parses a page. Throws Error(kIo) with `place` if the text is not a valid one.
ListingPage parse_listing(std::string_view xml, const std::string& place);

/// Error that a store returns for a refused request.
struct StoreFault {
  std::string code, message;  ///< empty if the text is not such XML
};
StoreFault parse_fault(std::string_view xml);

/// Adds the schemes s3:// and gs:// to base/files/files.h, once. A reader of run files must
/// call it first.
void add_stores();

/// Clears facts, cached content and keys of all stores. So the next job of a process reads the
/// present content. No thread may be reading from a store.
void forget_stores();

}  // namespace lockstep::remote
