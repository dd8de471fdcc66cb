#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// How string tensors lie in a shard (docs/checkpoint_format.md, Data shard).
namespace lockstep::checkpoint {

struct EncodedStrings {
  std::string bytes;
  uint32_t masked_crc = 0;  ///< of the entry; not simply the crc of `bytes`
};

EncodedStrings encode_strings(const std::vector<std::string_view>& texts);

/// The masked crc of an entry, for a comparison with the index's, without taking memory for the
/// strings. Throws as decode_strings().
uint32_t crc_of_strings(std::string_view bytes, int64_t num_texts);

struct DecodedStrings {
  std::vector<std::string> texts;
  uint32_t masked_crc = 0;  ///< to be compared with the entry's
};

/// Throws std::runtime_error with the reason if `bytes` are not `num_texts` strings. Takes no
/// memory before that is known. 0 <= num_texts.
DecodedStrings decode_strings(std::string_view bytes, int64_t num_texts);

}  // namespace lockstep::checkpoint
