// Conversion between the protobufs of an index and the structs of bundle_index.h. It checks
// everything that a file may claim.
#include "checkpoint/bundle/entry_proto.h"

#include <stdexcept>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "checkpoint/bundle/slice_cover.h"
#include "checkpoint/bundle/slice_key.h"
#include "checkpoint/bundle/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

// Limits the length of a shape that a hostile index can give.
constexpr int kMaxDimensions = 64;

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw std::runtime_error("shape has more elements than fit 63 bits");
  return result;
}

/// Returns the shape after checking dimensions and the product for overflow.
std::vector<int64_t> checked_shape(const pb::Shape& proto) {
  if (proto.unknown_rank()) throw std::runtime_error("shape is unknown");
  if (proto.dim_size() > kMaxDimensions)
    throw std::runtime_error(fmt::format("{} dimensions", proto.dim_size()));
  std::vector<int64_t> shape;
  int64_t num_elements = 1;
  for (const auto& dim : proto.dim()) {
    if (dim.size() < 0)
      throw std::runtime_error(fmt::format("dimension {} is negative", dim.size()));
    shape.push_back(dim.size());
    if (dim.size() > 0)
      num_elements = product(num_elements, dim.size());  // a zero must not hide an overflow
  }
  return shape;
}

/// Checks the number of bytes against type and shape.
void check_size(const BundleEntry& entry) {
  if (!is_known_type(entry.dtype)) return;  // the place is known, the size of an element is not
  const int64_t num_elements = entry.num_elements();
  if (const auto type = scalar_type(entry.dtype)) {
    const int64_t wanted = product(num_elements, static_cast<int64_t>(c10::elementSize(*type)));
    if (entry.num_bytes != wanted)
      throw std::runtime_error(
          fmt::format("size is {} bytes, its type and shape need {}", entry.num_bytes, wanted));
    // A string takes at least one byte for its length, and the crc of the lengths takes four.
  } else if (entry.num_bytes < 4 || num_elements > entry.num_bytes - 4) {
    throw std::runtime_error(
        fmt::format("{} bytes cannot hold {} strings", entry.num_bytes, num_elements));
  }
}

}  // namespace

int64_t BundleEntry::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

namespace {

void put_shape(const std::vector<int64_t>& shape, pb::BundleEntryProto* proto) {
  pb::Shape* dims = proto->mutable_shape();  // present even for a scalar, as TensorFlow writes it
  for (const int64_t dim : shape) dims->add_dim()->set_size(dim);
}

void put_place(const BundlePlace& place, pb::BundleEntryProto* proto) {
  proto->set_shard_id(place.shard);
  proto->set_offset(place.offset);
  proto->set_size(place.num_bytes);
  proto->set_crc32c(place.masked_crc);
}

void put_box(const TensorBox& box, pb::SliceProto* proto) {
  for (size_t d = 0; d < box.start.size(); ++d) {
    auto* extent = proto->add_extent();
    // An extent without a length means the whole dimension, as TensorFlow writes it.
    if (box.length[d] == -1) continue;
    extent->set_start(box.start[d]);
    extent->set_length(box.length[d]);
  }
}

/// Returns the place after checking the shard's number and the end for overflow.
BundlePlace checked_place(const pb::BundleEntryProto& proto, int32_t num_shards) {
  const BundlePlace place{proto.shard_id(), proto.offset(), proto.size(), proto.crc32c()};
  if (place.shard < 0 || place.shard >= num_shards)
    throw std::runtime_error(fmt::format("shard {} of {} does not exist", place.shard, num_shards));
  int64_t end = 0;
  if (place.offset < 0 || place.num_bytes < 0 ||
      __builtin_add_overflow(place.offset, place.num_bytes, &end))
    throw std::runtime_error(
        fmt::format("place {} + {} is impossible", place.offset, place.num_bytes));
  return place;
}

/// Converts a slice's box and checks that it is inside a tensor of this shape.
TensorBox checked_box(const pb::SliceProto& proto, const std::vector<int64_t>& shape) {
  if (static_cast<size_t>(proto.extent_size()) != shape.size())
    throw std::runtime_error(
        fmt::format("a slice has {} dimensions, the tensor {}", proto.extent_size(), shape.size()));
  TensorBox box = key_box(proto);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.length[d] == -1) box.length[d] = shape[d];
    if (box.start[d] < 0 || box.length[d] < 0 || box.start[d] > shape[d] ||
        box.length[d] > shape[d] - box.start[d])
      throw std::runtime_error(fmt::format("a slice begins at {} and has {} of {} in dimension {}",
                                           box.start[d], box.length[d], shape[d], d));
  }
  return box;
}

/// Returns the slices with their boxes. Their places are set later.
std::vector<BundleSlice> checked_slices(const pb::BundleEntryProto& proto,
                                        const BundleEntry& entry) {
  if (!can_be_sliced(entry.dtype))
    throw std::runtime_error(fmt::format("{} cannot be saved in slices", type_name(entry.dtype)));
  if (entry.shape.empty()) throw std::runtime_error("a scalar cannot be saved in slices");
  if (proto.shard_id() != 0 || proto.offset() != 0 || proto.size() != 0 || proto.crc32c() != 0)
    throw std::runtime_error("has slices and a place of its own");
  std::vector<TensorBox> boxes;
  boxes.reserve(static_cast<size_t>(proto.slices_size()));
  for (const pb::SliceProto& slice : proto.slices())
    boxes.push_back(checked_box(slice, entry.shape));
  require_cover(boxes, entry.shape);
  std::vector<BundleSlice> slices(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) slices[i].box = std::move(boxes[i]);
  return slices;
}

}  // namespace

// A sliced tensor's entry has no place; its slices have their own rows.
pb::BundleEntryProto to_proto(const BundleEntry& entry) {
  pb::BundleEntryProto proto;
  proto.set_dtype(entry.dtype);
  put_shape(entry.shape, &proto);
  if (!entry.is_sliced()) put_place(entry, &proto);
  for (const BundleSlice& slice : entry.slices)
    put_box(with_whole_dims(slice.box, entry.shape), proto.add_slices());
  return proto;
}

pb::BundleEntryProto to_proto(int32_t dtype, const BundleSlice& slice) {
  pb::BundleEntryProto proto;
  proto.set_dtype(dtype);
  put_shape(slice.box.length, &proto);
  put_place(slice, &proto);
  return proto;
}

TensorBox key_box(const pb::SliceProto& proto) {
  TensorBox box;
  for (const auto& extent : proto.extent()) {
    const bool whole = extent.has_length_case() == pb::SliceProto::Extent::HAS_LENGTH_NOT_SET ||
                       extent.length() == -1;
    box.start.push_back(whole ? 0 : extent.start());
    box.length.push_back(whole ? -1 : extent.length());
  }
  return box;
}

BundleEntry from_proto(const pb::BundleEntryProto& proto, int32_t num_shards) {
  BundleEntry entry;
  entry.dtype = proto.dtype();
  if (entry.dtype <= 0)  // TensorFlow numbers its types from 1
    throw std::runtime_error(fmt::format("element type {} is not known", entry.dtype));
  entry.shape = checked_shape(proto.shape());
  if (proto.slices_size() > 0) {
    entry.slices = checked_slices(proto, entry);
    return entry;
  }
  static_cast<BundlePlace&>(entry) = checked_place(proto, num_shards);
  check_size(entry);
  return entry;
}

}  // namespace lockstep::checkpoint
