#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/files/file_store.h"

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

}  // namespace lockstep::remote
