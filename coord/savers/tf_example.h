#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "coord/data_map.h"

namespace lockstep::coord {

/// Appends a sample as a tf.train.Example in protobuf's wire format, framed as a TFRecord
/// (base/tf_record.h).
///
/// Each value, nested ones by their path ("outputs/boxes"), becomes three features:
///   <key>        floats of 16, 32 and 64 bits as FloatList (float32: 64 bits are rounded),
///                integers and truth values as Int64List, uint8 as a BytesList of one
///                (tf.io.decode_raw), texts as BytesList; row-major
///   <key>/shape  Int64List, empty for a single number
///   <key>/dtype  "float32", "uint8", "string", ...
///
/// Throws Error(kBadData) with key and type for complex and quantized tensors. Throws it with the
/// name for two values that would be one feature. Examples are a key "a/b" and a key "b" of a map
/// "a", or a key "a/shape" next to "a".
///
/// Source: tensorflow/core/example/feature.proto.
void append_tf_example(const DataMap& sample, std::string* records);

}  // namespace lockstep::coord
