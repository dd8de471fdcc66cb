#pragma once

#include <string>

#include "checkpoint/bundle/bundle_index.h"
#include "checkpoint/proto/bundle.pb.h"

/// Between entries and their wire form. For sources of this module only: it shows protobuf.
namespace lockstep::checkpoint {

inline constexpr int32_t kMaxShards = 99'999;  ///< five digits in the file name

pb::BundleEntryProto to_proto(const BundleEntry& entry);
/// The entry under the slice's own key: a tensor of the box's shape.
pb::BundleEntryProto to_proto(int32_t dtype, const BundleSlice& slice);
/// Throws std::runtime_error with the reason if the entry breaks a rule. Of slices only the boxes
/// are there, which make up the tensor, each element once; their places stand under keys of their
/// own.
BundleEntry from_proto(const pb::BundleEntryProto& proto, int32_t num_shards);
/// The box as it stands in the slice's own key: with -1 for a whole dimension where the proto gives
/// no length. (Where it gives the dimension's length, so does the key.)
TensorBox key_box(const pb::SliceProto& proto);

}  // namespace lockstep::checkpoint
