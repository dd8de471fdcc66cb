#include "base/tf_record.h"

#include <bit>
#include <cstdint>

#include "base/digest.h"

namespace lockstep {
namespace {

// The format is little-endian.
static_assert(std::endian::native == std::endian::little,
              "lengths and sums are written as they lie in memory");

template <typename T>
std::string_view bytes_of(const T& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

}  // namespace

void append_tf_record(std::string_view data, std::string* records) {
  const uint64_t length = data.size();
  const uint32_t length_sum = masked_crc32c(crc32c(bytes_of(length)));
  const uint32_t sum = masked_crc32c(crc32c(data));
  records->append(bytes_of(length)).append(bytes_of(length_sum));
  records->append(data).append(bytes_of(sum));
}

}  // namespace lockstep
