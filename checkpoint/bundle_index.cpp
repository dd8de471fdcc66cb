#include "checkpoint/bundle_index.h"

#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/entry_proto.h"
#include "checkpoint/index_table.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kProducer = 1;
constexpr size_t kMaxEntryBytes = 65536;  // parsing takes a multiple of this

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: {}; restore from another save, or remove this one", file, what));
}

/// Number of shards from the entry with the empty key.
int32_t checked_header(const TableRows& rows) {
  const auto header = rows.find("");
  pb::BundleHeaderProto proto;
  if (header == rows.end()) throw std::runtime_error("no header entry");
  if (!proto.ParseFromString(header->second)) throw std::runtime_error("header cannot be parsed");
  if (proto.endianness() != pb::BundleHeaderProto::LITTLE)
    throw std::runtime_error("byte order is not little-endian");
  if (proto.version().min_consumer() > kProducer)
    throw std::runtime_error(
        fmt::format("needs a reader of version {}", proto.version().min_consumer()));
  if (proto.num_shards() < 1 || proto.num_shards() > kMaxShards)
    throw std::runtime_error(fmt::format("number of shards is {}", proto.num_shards()));
  return proto.num_shards();
}

BundleEntry checked_entry(const std::string& value, int32_t num_shards) {
  if (value.size() > kMaxEntryBytes)
    throw std::runtime_error(fmt::format("entry of {} bytes", value.size()));
  pb::BundleEntryProto proto;
  if (!proto.ParseFromString(value)) throw std::runtime_error("entry cannot be parsed");
  return from_proto(proto, num_shards);
}

TableRows decode_rows(std::string_view bytes, const std::string& file) {
  try {
    return decode_table(bytes);
  } catch (const std::runtime_error& fault) {
    refuse(file, fault.what());
  }
}

/// Keys that begin with a zero byte hold the places of slices.
bool is_slice_key(const std::string& key) { return !key.empty() && key.front() == '\0'; }

}  // namespace

std::string encode_index(const BundleIndex& index) {
  pb::BundleHeaderProto header;
  header.set_num_shards(index.num_shards);
  header.mutable_version()->set_producer(kProducer);
  TableRows rows;
  rows[""] = header.SerializeAsString();
  for (const auto& [name, entry] : index.entries) rows[name] = to_proto(entry).SerializeAsString();
  return encode_table(rows);
}

BundleIndex decode_index(std::string_view bytes, const std::string& file) {
  const TableRows rows = decode_rows(bytes, file);
  BundleIndex index;
  std::string name;
  try {
    index.num_shards = checked_header(rows);
    for (const auto& [key, value] : rows) {
      if (key.empty()) continue;
      name = key;
      BundleEntry entry = checked_entry(value, index.num_shards);
      if (!is_slice_key(key))
        index.entries.emplace_hint(index.entries.end(), key, std::move(entry));
    }
  } catch (const std::runtime_error& fault) {
    refuse(file, (name.empty() ? "" : fmt::format("tensor '{}': ", name)) + fault.what());
  }
  return index;
}

}  // namespace lockstep::checkpoint
