#pragma once

#include <string>
#include <vector>

#include "checkpoint/bundle_index.h"
#include "checkpoint/shard_image.h"

/// How ranks tell each other what they have written.
namespace lockstep::checkpoint {

/// This rank's slots, filled, as bytes of a message.
std::string shard_report(const ShardImage& image);

/// The index of all ranks' shards, from their reports. Throws Error(kBug) unless they make up every
/// piece, each element once.
BundleIndex index_of(const std::vector<std::string>& reports, const std::vector<SavePiece>& pieces);

}  // namespace lockstep::checkpoint
