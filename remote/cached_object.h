#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/files/store.h"

/// Objects of a store that are read by ranges through a cache.
namespace lockstep::remote {

/// Cache of the object blocks read last, up to a number of bytes. A block that several threads
/// request at once is fetched once. Thread-safe.
class BlockCache;
std::shared_ptr<BlockCache> make_block_cache(int64_t max_bytes);

/// Function that returns exactly these bytes of an object, or throws.
using FetchRange = std::function<std::string(int64_t offset, int64_t num_bytes)>;

/// Returns the object, which is read through the cache of blocks. Whole blocks are fetched if all
/// known objects fit into the cache (`all_fit`), or a read continues the last one. They are fetched
/// too for ranges of at least half a block and for small objects. Otherwise only the range is
/// fetched.
std::unique_ptr<files::RemoteFile> cached_object(files::FileFacts facts, FetchRange fetch,
                                                 bool all_fit, std::shared_ptr<BlockCache> cache);

}  // namespace lockstep::remote
