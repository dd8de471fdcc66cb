#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Encoding of string tensors in a shard (docs/checkpoint_format.md, Data shard).
namespace lockstep::checkpoint {

struct EncodedStrings {
  std::string bytes;
  uint32_t masked_crc = 0;  ///< crc of the entry, which is not the plain crc of `bytes`
};

EncodedStrings encode_strings(const std::vector<std::string_view>& texts);

/// Returns the masked crc of an entry for comparison with the index, without allocating the
/// strings. Throws as decode_strings().
uint32_t crc_of_strings(std::string_view bytes, int64_t num_texts);

struct DecodedStrings {
  std::vector<std::string> texts;
  uint32_t masked_crc = 0;  ///< to compare with the entry's
};

/// Decodes an entry. Throws std::runtime_error with the reason if `bytes` are not `num_texts`
/// strings. No memory is allocated before that is known. num_texts must be >= 0.
DecodedStrings decode_strings(std::string_view bytes, int64_t num_texts);

}  // namespace lockstep::checkpoint
