#pragma once

#include "checkpoint/format/bundle_index.h"
#include "checkpoint/proto/bundle.pb.h"

/// Conversion between index entries and their wire format. For this module's sources only, since it
/// exposes protobuf.
namespace lockstep::checkpoint {

inline constexpr int32_t kMaxShards = 99'999;  ///< the file name has five digits

pb::BundleEntryProto to_proto(const BundleEntry& entry);
/// Returns the entry for a slice's own key: a tensor of the box's shape.
pb::BundleEntryProto to_proto(int32_t dtype, const BundleSlice& slice);
/// Converts and checks an entry. Throws std::runtime_error with the reason for an invalid entry.
/// Slices get only their boxes, which cover the tensor exactly once. Their places are in rows under
/// their own keys.
BundleEntry from_proto(const pb::BundleEntryProto& proto, int32_t num_shards);
/// Returns the box as it is in the slice's own key. A dimension without a length in the proto has
/// length -1. If the proto gives the dimension's full length, so does the key.
TensorBox key_box(const pb::SliceProto& proto);

}  // namespace lockstep::checkpoint
