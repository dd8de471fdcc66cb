#include "remote/add_stores.h"

#include "base/files/file_store.h"
#include "remote/object_store.h"

namespace lockstep::remote {

void add_stores() {
  [[maybe_unused]] static const bool added = [] {
    files::add_store("s3", std::make_unique<ObjectStore>("s3", amazon_access));
    files::add_store("gs", std::make_unique<ObjectStore>("gs", google_access));
    return true;
  }();
}

}  // namespace lockstep::remote
