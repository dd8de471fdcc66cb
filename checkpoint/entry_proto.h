#pragma once

#include <string>

#include "checkpoint/bundle_index.h"
#include "checkpoint/proto/bundle.pb.h"

/// Between entries and their wire form. For sources of this room only: it shows protobuf.
namespace lockstep::checkpoint {

inline constexpr int32_t kMaxShards = 99'999;  ///< five digits in the file name

pb::BundleEntryProto to_proto(const BundleEntry& entry);
/// Throws std::runtime_error with the reason if the entry breaks a rule.
BundleEntry from_proto(const pb::BundleEntryProto& proto, int32_t num_shards);

}  // namespace lockstep::checkpoint
