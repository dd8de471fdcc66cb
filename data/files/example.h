#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Type of list in a feature of a tf.train.Example.
enum class FeatureKind { kNone, kBytes, kFloats, kInts };

/// View of a feature in an Example; nothing is copied.
struct FeatureView {
  FeatureKind kind = FeatureKind::kNone;
  std::string_view list;  ///< bytes of its BytesList, FloatList or Int64List
};

/// Finds a feature by name; kNone if there is none, the last if there are two. Throws
/// Error(kBadData), without a place, if the message is malformed.
FeatureView find_feature(std::string_view example, std::string_view name);
/// Returns the names of all features, for messages.
std::vector<std::string> feature_names(std::string_view example);

/// Returns the only value of a BytesList. Throws if there are none or several.
std::string_view only_bytes(const FeatureView& feature);
/// Appends the values of an Int64List, packed or not, to `values`.
void append_ints(const FeatureView& feature, std::vector<int64_t>* values);
/// Appends the values of a FloatList, packed or not, as little-endian float32.
void append_floats(const FeatureView& feature, std::string* bytes);

}  // namespace lockstep::data
