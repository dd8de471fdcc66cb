// Strings of a checkpoint. They are small and therefore read at once, without mapping.
#include <stdexcept>

#include "base/error.h"
#include "checkpoint/bundle/string_tensor.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/reader/bundle_reader.h"

namespace lockstep::checkpoint {

void BundleReader::check_strings(const std::string& name) {
  const BundleEntry& place = entry(name);
  const std::string bytes = bytes_of(name);
  try {
    const uint32_t found = crc_of_strings(bytes, place.num_elements());
    if (found == place.masked_crc) return;
    refuse(name, wrong_crc_text(place.num_bytes, found, place.masked_crc));
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& fault) {
    refuse(name, fault.what());
  }
}

std::string BundleReader::bytes_of(const std::string& name) {
  const BundleEntry& place = entry(name);
  require_inside(name);
  std::string bytes(static_cast<size_t>(place.num_bytes), '\0');
  shard(place.shard).file.read_at(place.offset, bytes);
  return bytes;
}

std::string BundleReader::read_text(const std::string& name) {
  if (!entry(name).shape.empty()) refuse(name, "is not one text");
  return read_strings(name).front();
}

std::vector<std::string> BundleReader::read_strings(const std::string& name) {
  const BundleEntry& place = entry(name);
  if (place.dtype != kStringType) refuse(name, "holds numbers, not strings");
  const std::string bytes = bytes_of(name);
  DecodedStrings decoded;
  try {
    decoded = decode_strings(bytes, place.num_elements());
  } catch (const std::runtime_error& fault) {
    refuse(name, fault.what());
  }
  if (decoded.masked_crc != place.masked_crc)
    refuse(name, wrong_crc_text(place.num_bytes, decoded.masked_crc, place.masked_crc));
  return std::move(decoded.texts);
}

}  // namespace lockstep::checkpoint
