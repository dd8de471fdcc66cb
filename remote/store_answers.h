#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/files/file_store.h"

namespace lockstep::remote {

/// One page of ListObjectsV2.
struct ListingPage {
  std::vector<files::FileFacts> objects;  ///< `path` is the key
  std::string next_token;                 ///< of the page behind; empty: none
};

/// Throws Error(kIo) that names `place` if the text is no such page.
ListingPage parse_listing(std::string_view xml, const std::string& place);

/// What a store says of a request that it refuses.
struct StoreFault {
  std::string code, message;  ///< empty where the text is no such XML
};
StoreFault parse_fault(std::string_view xml);

}  // namespace lockstep::remote
