// A fast non-cryptographic hash. The result is the same on all hosts, since it uses integers only.
#include "dist/replica/tensor_digest.h"

#include <array>
#include <bit>
#include <cstring>

namespace lockstep::dist {
namespace {

constexpr uint64_t kMultiplier =
    0x9fb21c651e98df25;  // odd, so that each step below is a bijection of the word
constexpr uint64_t kFinal = 0xd6e8feb86659fd93;

uint64_t absorb(uint64_t lane, uint64_t word) { return std::rotl(lane ^ word, 29) * kMultiplier; }

uint64_t spread(uint64_t x) {
  x = (x ^ (x >> 32)) * kFinal;
  x = (x ^ (x >> 32)) * kFinal;
  return x ^ (x >> 32);
}

uint64_t word_at(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Uses four lanes, since each waits for its own multiplication. Then come the remaining words, the
/// last one padded with zeros.
uint64_t digest_bytes(const std::byte* bytes, int64_t num_bytes, uint64_t seed) {
  std::array<uint64_t, 4> lanes{seed, spread(seed + 1), spread(seed + 2), spread(seed + 3)};
  int64_t i = 0;
  for (; i + 32 <= num_bytes; i += 32)
    for (int lane = 0; lane < 4; ++lane)
      lanes[lane] = absorb(lanes[lane], word_at(bytes + i + 8 * lane));
  uint64_t digest = 0;
  for (const uint64_t lane : lanes) digest = spread(absorb(digest, lane));
  for (; i + 8 <= num_bytes; i += 8) digest = absorb(digest, word_at(bytes + i));
  if (i < num_bytes) {
    uint64_t last = 0;
    std::memcpy(&last, bytes + i, num_bytes - i);
    digest = absorb(digest, last);
  }
  return spread(digest);
}

}  // namespace

int64_t tensor_digest(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().cpu().contiguous();
  // Type and shape are part of the digest: the same bytes in another shape must differ.
  uint64_t seed = spread(static_cast<uint64_t>(whole.scalar_type()) + 1);
  for (const int64_t size : whole.sizes()) seed = absorb(seed, spread(static_cast<uint64_t>(size)));
  const auto num_bytes = static_cast<int64_t>(whole.nbytes());
  return static_cast<int64_t>(digest_bytes(static_cast<const std::byte*>(whole.const_data_ptr()),
                                           num_bytes, spread(seed ^ num_bytes)));
}

}  // namespace lockstep::dist
