#include "checkpoint/bundle_index.h"

#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/entry_proto.h"
#include "checkpoint/index_table.h"
#include "checkpoint/slice_key.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kProducer = 1;
constexpr size_t kMaxEntryBytes = size_t{256} << 10;  // parsing takes a multiple of this
/// What decoding may hold, beside the file's bytes and one parsed entry.
constexpr size_t kMaxIndexMemory = size_t{48} << 20;
constexpr size_t kRowBytes = 256;  ///< of a decoded row beyond its key and value

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: {}; restore from another save, or remove this one", file, what));
}

/// Number of shards from the entry with the empty key.
int32_t checked_header(std::string_view value) {
  pb::BundleHeaderProto proto;
  if (!proto.ParseFromArray(value.data(), static_cast<int>(value.size())))
    throw std::runtime_error("header cannot be parsed");
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
  if (value.size() > kMaxEntryBytes)
    throw std::runtime_error(fmt::format("entry of {} bytes", value.size()));
  pb::BundleEntryProto proto;
  if (!proto.ParseFromArray(value.data(), static_cast<int>(value.size())))
    throw std::runtime_error("entry cannot be parsed");
  return proto;
}

/// Takes the rows in their order: the header, the places of slices, the tensors.
class IndexDecoder {
 public:
  void take(const std::string& key, std::string_view value) {
    count_memory(key.size() + value.size());
    if (key.empty()) {
      index_.num_shards = checked_header(value);
      has_header_ = true;
    } else if (!has_header_) {
      throw std::runtime_error("no header entry");
    } else if (is_slice_key(key)) {
      slice_rows_.emplace_hint(slice_rows_.end(), key, value);
    } else {
      name_ = key;
      index_.entries.emplace_hint(index_.entries.end(), key, entry_of(value));
    }
  }

  /// After the last row.
  BundleIndex finish() {
    name_.clear();
    if (!has_header_) throw std::runtime_error("no header entry");
    if (num_slices_ != slice_rows_.size())
      throw std::runtime_error(fmt::format("{} slices have places, {} belong to a tensor",
                                           slice_rows_.size(), num_slices_));
    return std::move(index_);
  }

  /// The tensor whose row was taken last; empty if none.
  const std::string& name() const { return name_; }

 private:
  /// Rows of few bytes must not unfold to much memory.
  void count_memory(size_t row_bytes) {
    num_bytes_ += row_bytes + kRowBytes;
    if (num_bytes_ > kMaxIndexMemory)
      throw std::runtime_error("more tensors and slices than an index may have");
  }

  BundleEntry entry_of(std::string_view value) {
    const pb::BundleEntryProto proto = parsed_entry(value);
    BundleEntry entry = from_proto(proto, index_.num_shards);
    for (size_t i = 0; i < entry.slices.size(); ++i)
      put_place(slice_key(name_, key_box(proto.slices(static_cast<int>(i)))), entry.dtype,
                &entry.slices[i]);
    num_slices_ += entry.slices.size();
    return entry;
  }

  /// From the row under the slice's key.
  void put_place(const std::string& key, int32_t dtype, BundleSlice* slice) const {
    const auto row = slice_rows_.find(key);
    if (row == slice_rows_.end())
      throw std::runtime_error(fmt::format("slice {} has no place", box_text(slice->box)));
    const BundleEntry stored = from_proto(parsed_entry(row->second), index_.num_shards);
    if (stored.is_sliced() || stored.dtype != dtype || stored.shape != slice->box.length)
      throw std::runtime_error(
          fmt::format("slice {} has another type or shape at its place", box_text(slice->box)));
    static_cast<BundlePlace&>(*slice) = stored;
  }

  BundleIndex index_;
  std::map<std::string, std::string> slice_rows_;
  std::string name_;
  bool has_header_ = false;
  size_t num_slices_ = 0;
  size_t num_bytes_ = 0;
};

}  // namespace

std::string encode_index(const BundleIndex& index) {
  pb::BundleHeaderProto header;
  header.set_num_shards(index.num_shards);
  header.mutable_version()->set_producer(kProducer);
  TableRows rows;
  rows[""] = header.SerializeAsString();
  for (const auto& [name, entry] : index.entries) {
    std::string& row = rows[name];
    row = to_proto(entry).SerializeAsString();
    check(row.size() <= kMaxEntryBytes, "tensor '" + name + "' has too many slices");
    for (const BundleSlice& slice : entry.slices)
      rows[slice_key(name, with_whole_dims(slice.box, entry.shape))] =
          to_proto(entry.dtype, slice).SerializeAsString();
  }
  return encode_table(rows);
}

BundleIndex decode_index(std::string_view bytes, const std::string& file) {
  IndexDecoder decoder;
  try {
    for_each_row(bytes,
                 [&](const std::string& key, std::string_view value) { decoder.take(key, value); });
    return decoder.finish();
  } catch (const std::runtime_error& fault) {
    const std::string& name = decoder.name();
    refuse(file, (name.empty() ? "" : fmt::format("tensor '{}': ", name)) + fault.what());
  }
}

}  // namespace lockstep::checkpoint
