#include "data/files/idx_header.h"

#include <fmt/format.h>

#include "data/files/refuse.h"

namespace lockstep::data {
namespace {

constexpr uint8_t kIdxUint8 = 8;

uint8_t idx_byte(std::string_view bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

/// Reads a big-endian number of 4 bytes.
int64_t big_endian32(std::string_view bytes, size_t at) {
  int64_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | idx_byte(bytes, at + i);
  return value;
}

}  // namespace

IdxHeader parse_idx_header(std::string_view bytes, int64_t file_bytes, const std::string& file) {
  if (bytes.size() < 4 || idx_byte(bytes, 0) != 0 || idx_byte(bytes, 1) != 0)
    refuse_file(file,
                "offset 0: is no IDX file; one begins with two bytes of zero (is it still "
                "compressed? `gunzip` it)");
  if (idx_byte(bytes, 2) != kIdxUint8)
    refuse_file(file, fmt::format("offset 2: type 0x{:02x} of values; only uint8 (0x08) is read",
                                  idx_byte(bytes, 2)));
  const size_t num_axes = idx_byte(bytes, 3);
  if (num_axes > 8) refuse_file(file, fmt::format("offset 3: {} axes", num_axes));
  if (bytes.size() < 4 + 4 * num_axes) refuse_file(file, "is cut short in its header");
  IdxHeader header{{}, static_cast<int64_t>(4 + 4 * num_axes)};
  int64_t num_values = 1;
  for (size_t axis = 0; axis < num_axes; ++axis) {
    header.sizes.push_back(big_endian32(bytes, 4 + 4 * axis));
    if (header.sizes.back() == 0) refuse_file(file, fmt::format("axis {} is of size 0", axis));
    if (__builtin_mul_overflow(num_values, header.sizes.back(), &num_values))
      refuse_file(file, "its sizes are those of no file");
  }
  if (file_bytes - header.num_bytes != num_values)
    refuse_file(file, fmt::format("has {} bytes behind its header, which says {}: it is cut or no "
                                  "IDX file",
                                  file_bytes - header.num_bytes, num_values));
  return header;
}

}  // namespace lockstep::data
