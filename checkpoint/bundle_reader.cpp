#include "checkpoint/bundle_reader.h"

#include <algorithm>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/save_files.h"
#include "checkpoint/string_tensor.h"
#include "checkpoint/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;

std::string checked_prefix(std::string prefix) {
  for (const std::string_view ending : {".index", ".tmp"})
    if (prefix.ends_with(ending))
      throw Error(ExitCode::kUsage, "checkpoint",
                  fmt::format("'{}' names a file; a save is named without '{}': {}", prefix, ending,
                              prefix.substr(0, prefix.size() - ending.size())));
  return prefix;
}

std::string form(int32_t dtype, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", type_name(dtype), fmt::join(shape, ", "));
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

BundleReader::BundleReader(std::string prefix)
    : prefix_(checked_prefix(std::move(prefix))),
      index_(decode_index(files::read(index_path(prefix_), kMaxIndexBytes), index_path(prefix_))) {}

const BundleEntry* BundleReader::find(const std::string& name) const {
  const auto place = index_.entries.find(name);
  return place == index_.entries.end() ? nullptr : &place->second;
}

const BundleEntry& BundleReader::entry(const std::string& name) const {
  const BundleEntry* found = find(name);
  if (found == nullptr)
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: no tensor '{}'", index_path(prefix_), name));
  return *found;
}

void BundleReader::refuse(const std::string& name, const std::string& what) const {
  const BundleEntry& bad = entry(name);
  throw Error(
      ExitCode::kBadData, "checkpoint",
      fmt::format("{}: tensor '{}' at byte {}: {}; restore from another save, or remove this one",
                  shard_path(prefix_, bad.shard, index_.num_shards), name, bad.offset, what));
}

const files::Reader& BundleReader::shard(int32_t number) {
  std::unique_ptr<files::Reader>& reader = shards_[number];
  if (!reader)
    reader = std::make_unique<files::Reader>(shard_path(prefix_, number, index_.num_shards));
  return *reader;
}

void BundleReader::require_inside(const std::string& name, const BundleEntry& entry) {
  if (entry.sliced) refuse(name, "is saved in slices, which are not read yet");
  const int64_t num_bytes = shard(entry.shard).num_bytes();
  if (entry.end() > num_bytes)
    refuse(name, fmt::format("needs {} bytes, the file ends at byte {} (truncated?)",
                             entry.num_bytes, num_bytes));
}

void BundleReader::read_checked(const std::string& name, const BundleEntry& entry,
                                std::span<char> bytes) {
  shard(entry.shard).read_at(entry.offset, bytes);
  if (masked_crc32c(crc32c({bytes.data(), bytes.size()})) != entry.masked_crc)
    refuse(name, "wrong crc32c (damaged)");
  const bool is_bool = scalar_type(entry.dtype) == at::kBool;
  if (is_bool &&
      std::any_of(bytes.begin(), bytes.end(), [](char byte) { return (byte & ~1) != 0; }))
    refuse(name, "a bool is neither 0 nor 1");
}

at::Tensor BundleReader::read(const std::string& name) {
  const BundleEntry& place = entry(name);
  const auto type = scalar_type(place.dtype);
  require_inside(name, place);
  if (!type) refuse(name, "holds strings, not numbers");
  const at::Tensor values = at::empty(place.shape, *type);
  read_checked(name, place, {static_cast<char*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

void BundleReader::read_into(const std::string& name, const at::Tensor& live) {
  const BundleEntry& place = entry(name);
  if (type_number(live.scalar_type()) != place.dtype ||
      live.sizes() != at::IntArrayRef(place.shape))
    refuse(name, fmt::format("is {}, but {} is wanted", form(place.dtype, place.shape),
                             form(type_number(live.scalar_type()).value_or(0), live.sizes())));
  const at::Tensor target = live.detach();
  if (!is_plain(target)) {
    target.copy_(read(name));
    return;
  }
  require_inside(name, place);
  read_checked(name, place, {static_cast<char*>(target.mutable_data_ptr()), target.nbytes()});
}

std::vector<std::string> BundleReader::read_strings(const std::string& name) {
  const BundleEntry& place = entry(name);
  if (place.dtype != kStringType) refuse(name, "holds numbers, not strings");
  require_inside(name, place);
  std::string bytes(static_cast<size_t>(place.num_bytes), '\0');
  shard(place.shard).read_at(place.offset, bytes);
  try {
    DecodedStrings decoded = decode_strings(bytes, place.num_elements());
    if (decoded.masked_crc != place.masked_crc) refuse(name, "wrong crc32c (damaged)");
    return std::move(decoded.texts);
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& fault) {
    refuse(name, fault.what());
  }
}

}  // namespace lockstep::checkpoint
