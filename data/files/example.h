#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Which list a feature of a tf.train.Example holds.
enum class FeatureKind { kNone, kBytes, kFloats, kInts };

/// A feature as it lies in the Example; nothing is copied.
struct FeatureView {
  FeatureKind kind = FeatureKind::kNone;
  std::string_view list;  ///< the bytes of its BytesList, FloatList or Int64List
};

/// The feature of that name, kNone if there is none; of two of one name the last. Throws
/// Error(kBadData), without a place, where the message is malformed.
FeatureView find_feature(std::string_view example, std::string_view name);
/// Names of all features, for messages.
std::vector<std::string> feature_names(std::string_view example);

/// The one value of a BytesList; throws if there are others or none.
std::string_view only_bytes(const FeatureView& feature);
/// Values of an Int64List or FloatList, packed or not, behind those of `values`.
void append_ints(const FeatureView& feature, std::vector<int64_t>* values);
/// As little-endian float32.
void append_floats(const FeatureView& feature, std::string* bytes);

}  // namespace lockstep::data
