#include "checkpoint/entry_proto.h"

#include <stdexcept>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "checkpoint/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMaxDimensions = 64;

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw std::runtime_error("shape has more elements than fit 63 bits");
  return result;
}

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

void check_size(const BundleEntry& entry) {
  const int64_t num_elements = entry.num_elements();
  if (const auto type = scalar_type(entry.dtype)) {
    const int64_t wanted = product(num_elements, static_cast<int64_t>(c10::elementSize(*type)));
    if (entry.num_bytes != wanted)
      throw std::runtime_error(
          fmt::format("size is {} bytes, its type and shape need {}", entry.num_bytes, wanted));
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

pb::BundleEntryProto to_proto(const BundleEntry& entry) {
  pb::BundleEntryProto proto;
  proto.set_dtype(entry.dtype);
  pb::Shape* shape = proto.mutable_shape();  // present even for a scalar, as TensorFlow writes it
  for (const int64_t dim : entry.shape) shape->add_dim()->set_size(dim);
  proto.set_shard_id(entry.shard);
  proto.set_offset(entry.offset);
  proto.set_size(entry.num_bytes);
  proto.set_crc32c(entry.masked_crc);
  return proto;
}

BundleEntry from_proto(const pb::BundleEntryProto& proto, int32_t num_shards) {
  BundleEntry entry;
  entry.dtype = proto.dtype();
  if (!is_known_type(entry.dtype))
    throw std::runtime_error(fmt::format("element type {} is not known", entry.dtype));
  entry.shape = checked_shape(proto.shape());
  entry.sliced = proto.slices_size() > 0;
  if (entry.sliced) return entry;  // such an entry has no bytes of its own
  entry.shard = proto.shard_id();
  entry.offset = proto.offset();
  entry.num_bytes = proto.size();
  entry.masked_crc = proto.crc32c();
  if (entry.shard < 0 || entry.shard >= num_shards)
    throw std::runtime_error(fmt::format("shard {} of {} does not exist", entry.shard, num_shards));
  int64_t end = 0;
  if (entry.offset < 0 || entry.num_bytes < 0 ||
      __builtin_add_overflow(entry.offset, entry.num_bytes, &end))
    throw std::runtime_error(
        fmt::format("place {} + {} is impossible", entry.offset, entry.num_bytes));
  check_size(entry);
  return entry;
}

}  // namespace lockstep::checkpoint
