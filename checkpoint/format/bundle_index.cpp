// Contents of an index: protobufs of its rows, and the table.
#include "checkpoint/format/bundle_index.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/entry_proto.h"
#include "checkpoint/format/tensor_type.h"

namespace lockstep::checkpoint {

// Conversion between the index's protobufs and BundleIndex's structs. It checks everything that a
// file may claim.

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

int64_t BundleEntry::num_elements() const { return c10::multiply_integers(shape); }

static void put_shape(const std::vector<int64_t>& shape, pb::BundleEntryProto* proto) {
  pb::Shape* dims = proto->mutable_shape();  // present even for a scalar, as TensorFlow writes it
  for (const int64_t dim : shape) dims->add_dim()->set_size(dim);
}

static void put_place(const BundlePlace& place, pb::BundleEntryProto* proto) {
  proto->set_shard_id(place.shard);
  proto->set_offset(place.offset);
  proto->set_size(place.num_bytes);
  proto->set_crc32c(place.masked_crc);
}

static void put_box(const TensorBox& box, pb::SliceProto* proto) {
  for (size_t d = 0; d < box.start.size(); ++d) {
    auto* extent = proto->add_extent();
    // An extent without a length means the whole dimension, as TensorFlow writes it.
    if (box.length[d] == -1) continue;
    extent->set_start(box.start[d]);
    extent->set_length(box.length[d]);
  }
}

/// Returns the place after checking the shard's number and the end for overflow.
static BundlePlace checked_place(const pb::BundleEntryProto& proto, int32_t num_shards) {
  const BundlePlace place{proto.shard_id(), proto.offset(), proto.size(), proto.crc32c()};
  if (place.shard < 0 || place.shard >= num_shards)
    throw std::runtime_error(fmt::format("shard {} of {} does not exist", place.shard, num_shards));
  int64_t end = 0;
  if (place.offset < 0 || place.num_bytes < 0 ||
      __builtin_add_overflow(place.offset, place.num_bytes, &end))
    throw std::runtime_error(
        fmt::format("position {} + {} is impossible", place.offset, place.num_bytes));
  return place;
}

/// Converts a slice's box and checks that it is inside a tensor of this shape.
static TensorBox checked_box(const pb::SliceProto& proto, const std::vector<int64_t>& shape) {
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
static std::vector<BundleSlice> checked_slices(const pb::BundleEntryProto& proto,
                                               const BundleEntry& entry) {
  if (!can_be_sliced(entry.dtype))
    throw std::runtime_error(fmt::format("{} cannot be saved in slices", type_name(entry.dtype)));
  if (entry.shape.empty()) throw std::runtime_error("a scalar cannot be saved in slices");
  if (proto.shard_id() != 0 || proto.offset() != 0 || proto.size() != 0 || proto.crc32c() != 0)
    throw std::runtime_error("has slices and a position of its own");
  std::vector<TensorBox> boxes;
  boxes.reserve(static_cast<size_t>(proto.slices_size()));
  for (const pb::SliceProto& slice : proto.slices())
    boxes.push_back(checked_box(slice, entry.shape));
  require_cover(boxes, entry.shape);
  std::vector<BundleSlice> slices(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) slices[i].box = std::move(boxes[i]);
  return slices;
}

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
    throw std::runtime_error(fmt::format("element type {} is unknown", entry.dtype));
  entry.shape = checked_shape(proto.shape());
  if (proto.slices_size() > 0) {
    entry.slices = checked_slices(proto, entry);
    return entry;
  }
  static_cast<BundlePlace&>(entry) = checked_place(proto, num_shards);
  check_size(entry);
  return entry;
}

// The index: rows of a sorted table, each a small protobuf. Decoding trusts nothing in the file: it
// limits memory and checks every place and slice.

namespace {

constexpr int kProducer = 1;
/// Memory limit of decoding: a constant plus a factor for each byte of the file. A row of a valid
/// index takes at least 20 bytes of the file.
constexpr size_t kMemoryBytes = size_t{48} << 20;
// A sound index stays far below; a hostile one could otherwise take all memory.
constexpr size_t kMemoryPerByte = 20;
constexpr size_t kRowBytes = 256;  ///< memory of a decoded row in addition to its key and value

/// Parses a protobuf; `what` names it in the error.
template <typename Proto>
Proto parsed(std::string_view value, std::string_view what) {
  Proto proto;
  if (!proto.ParseFromArray(value.data(), static_cast<int>(value.size())))
    throw std::runtime_error(fmt::format("{} cannot be parsed", what));
  return proto;
}

/// Returns the number of shards from the header, which is the entry with the empty key. Refuses
/// what a reader cannot read correctly: byte order and version.
int32_t checked_header(std::string_view value) {
  const auto proto = parsed<pb::BundleHeaderProto>(value, "header");
  if (proto.endianness() != pb::BundleHeaderProto::LITTLE)
    throw std::runtime_error("byte order is not little-endian");
  if (proto.version().min_consumer() > kProducer)
    throw std::runtime_error(
        fmt::format("needs a reader of version {}", proto.version().min_consumer()));
  if (proto.num_shards() < 1 || proto.num_shards() > kMaxShards)
    throw std::runtime_error(fmt::format("number of shards is {}", proto.num_shards()));
  return proto.num_shards();
}

pb::BundleEntryProto parsed_entry(std::string_view value) {
  return parsed<pb::BundleEntryProto>(value, "entry");
}

/// Counts the slices of an entry by walking its protobuf fields without parsing them. Throws if a
/// slice, or the rest of the entry, is larger than in any valid index.
size_t num_slices_of(std::string_view value) {
  // Tag of the field `slices` (number 7, length-delimited) of BundleEntryProto.
  constexpr uint64_t kSlicesTag = 7 << 3 | 2;
  constexpr size_t kMostSliceBytes = 2048, kMostOtherBytes = 4096;
  size_t num_slices = 0, other_bytes = 0;
  const auto varint = [&] {
    const std::optional<uint64_t> number = take_varint(&value);
    if (!number) throw std::runtime_error("entry cannot be parsed");
    return *number;
  };
  while (!value.empty()) {
    const size_t before = value.size();
    const uint64_t tag = varint(), wire_type = tag & 7;
    // Wire types 1 and 5 are fixed 64 and 32 bits. Any other type is invalid and fails the check.
    uint64_t num_bytes = wire_type == 1 ? 8 : wire_type == 5 ? 4 : value.size() + 1;
    if (wire_type == 0) {
      (void)varint();
      num_bytes = 0;
    }
    if (wire_type == 2) num_bytes = varint();
    if (num_bytes > value.size()) throw std::runtime_error("entry cannot be parsed");
    value.remove_prefix(num_bytes);
    const bool is_slice = tag == kSlicesTag;
    num_slices += is_slice ? 1 : 0;
    other_bytes += is_slice ? 0 : before - value.size();
    if (other_bytes > kMostOtherBytes || (is_slice && num_bytes > kMostSliceBytes))
      throw std::runtime_error(fmt::format("entry with a part of {} bytes", num_bytes));
  }
  return num_slices;
}

/// Rows with the places of slices, stored compactly because an index may have very many of them.
class SliceRows {
 public:
  /// Adds a row. Keys must ascend, because find() searches by bisection.
  void add(std::string_view key, std::string_view value) {
    rows_.push_back({bytes_.size(), key.size(), value.size()});
    bytes_ += key;
    bytes_ += value;
  }
  size_t size() const { return rows_.size(); }

  /// Returns the value of a row; nullopt if the key is unknown.
  std::optional<std::string_view> find(std::string_view key) const {
    const auto row =
        std::ranges::lower_bound(rows_, key, {}, [&](const Row& one) { return key_of(one); });
    if (row == rows_.end() || key_of(*row) != key) return std::nullopt;
    return std::string_view(bytes_).substr(row->offset + row->key_bytes, row->value_bytes);
  }

 private:
  struct Row {
    size_t offset, key_bytes, value_bytes;
  };
  std::string_view key_of(const Row& row) const {
    return std::string_view(bytes_).substr(row.offset, row.key_bytes);
  }

  std::string bytes_;
  std::vector<Row> rows_;
};

/// Decodes the rows in file order: header, places of slices, tensors. Slice keys begin with byte 0,
/// so they come before all names. All places are known when a tensor's row lists its slices.
class IndexDecoder {
 public:
  explicit IndexDecoder(size_t file_bytes)
      : most_memory_(kMemoryBytes + kMemoryPerByte * file_bytes) {}

  void take(const std::string& key, std::string_view value) {
    count_memory(key.size() + value.size());
    if (key.empty()) {
      index_.num_shards = checked_header(value);
      has_header_ = true;
    } else if (!has_header_) {
      throw std::runtime_error("no header entry");
    } else if (is_slice_key(key)) {
      slice_rows_.add(key, value);
    } else {
      name_ = key;
      index_.entries.emplace_hint(index_.entries.end(), key, entry_of(value));
    }
  }

  /// Ends decoding. Call it after the last row.
  BundleIndex finish() {
    name_.clear();
    if (!has_header_) throw std::runtime_error("no header entry");
    if (num_slices_ != slice_rows_.size())
      throw std::runtime_error(fmt::format("{} slices have positions, {} belong to a tensor",
                                           slice_rows_.size(), num_slices_));
    return std::move(index_);
  }

  /// Returns the tensor whose row was taken last; empty before the first.
  const std::string& name() const { return name_; }

 private:
  /// Adds to the memory estimate and throws above the limit: a small file must not unfold into much
  /// memory.
  void count_memory(size_t row_bytes) {
    num_bytes_ += row_bytes + kRowBytes;
    if (num_bytes_ > most_memory_)
      throw std::runtime_error("more tensors and slices than an index of its size may have");
  }

  BundleEntry entry_of(std::string_view value) {
    // Parsing takes a multiple of the row's bytes. So first check that the slices can exist.
    const size_t num_slices = num_slices_of(value);
    constexpr size_t kFew = 1000;  // up to here the check of each slice names the missing one
    if (num_slices > slice_rows_.size() + kFew)
      throw std::runtime_error(
          fmt::format("has {} slices, not all of which have positions", num_slices));
    const pb::BundleEntryProto proto = parsed_entry(value);
    BundleEntry entry = from_proto(proto, index_.num_shards);
    for (size_t i = 0; i < entry.slices.size(); ++i)
      put_place(slice_key(name_, key_box(proto.slices(static_cast<int>(i)))), entry.dtype,
                &entry.slices[i]);
    num_slices_ += entry.slices.size();
    // One row per slice: more slices than rows means that two tensors share a row.
    if (num_slices_ > slice_rows_.size())
      throw std::runtime_error("a slice that belongs to another tensor too");
    return entry;
  }

  /// Copies the place from the row under the slice's key.
  void put_place(const std::string& key, int32_t dtype, BundleSlice* slice) const {
    const std::optional<std::string_view> row = slice_rows_.find(key);
    if (!row)
      throw std::runtime_error(fmt::format("slice {} has no position", box_text(slice->box)));
    (void)num_slices_of(*row);
    const BundleEntry stored = from_proto(parsed_entry(*row), index_.num_shards);
    if (stored.is_sliced() || stored.dtype != dtype || stored.shape != slice->box.length)
      throw std::runtime_error(
          fmt::format("slice {} has another type or shape at its position", box_text(slice->box)));
    static_cast<BundlePlace&>(*slice) = stored;
  }

  BundleIndex index_;
  const size_t most_memory_;
  SliceRows slice_rows_;
  std::string name_;
  bool has_header_ = false;
  size_t num_slices_ = 0;
  size_t num_bytes_ = 0;
};

/// Adds the rows of one tensor's slices in key order.
void add_slices(const std::string& name, const BundleEntry& entry, TableEncoder* table) {
  std::vector<std::pair<std::string, const BundleSlice*>> rows;
  rows.reserve(entry.slices.size());
  for (const BundleSlice& slice : entry.slices)
    rows.emplace_back(slice_key(name, with_whole_dims(slice.box, entry.shape)), &slice);
  std::sort(rows.begin(), rows.end());
  for (const auto& [key, slice] : rows)
    table->add(key, to_proto(entry.dtype, *slice).SerializeAsString());
}

}  // namespace

/// Encodes header, slices and tensors. The keys of slices come before all names, in the order of
/// the tensors' names.
std::string encode_index(const BundleIndex& index) {
  pb::BundleHeaderProto header;
  header.set_num_shards(index.num_shards);
  header.mutable_version()->set_producer(kProducer);
  std::string bytes;
  TableEncoder table([&](std::string_view piece) { bytes += piece; });
  table.add("", header.SerializeAsString());
  for (const auto& [name, entry] : index.entries) {
    check(!name.empty() && name.front() != '\0', "a tensor has no valid name for an index");
    if (entry.is_sliced()) add_slices(name, entry, &table);
  }
  for (const auto& [name, entry] : index.entries)
    table.add(name, to_proto(entry).SerializeAsString());
  table.finish();
  return bytes;
}

BundleIndex decode_index(std::string_view bytes, const std::string& file) {
  IndexDecoder decoder(bytes.size());
  try {
    for_each_row(bytes,
                 [&](const std::string& key, std::string_view value) { decoder.take(key, value); });
    return decoder.finish();
  } catch (const std::runtime_error& fault) {
    const std::string& name = decoder.name();
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: {}{}; restore another checkpoint, or remove this one", file,
                            name.empty() ? "" : fmt::format("tensor '{}': ", name), fault.what()));
  }
}

}  // namespace lockstep::checkpoint
