#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace at {
class Tensor;
}

namespace lockstep {

/// SHA-256 over a sequence of byte strings (OpenSSL).
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& add(std::string_view bytes);
  /// The tensor's bytes in row-major order, whatever its strides. CPU tensors only.
  Sha256& add(const at::Tensor& tensor);
  /// 64 hex digits. Nothing may be added afterwards.
  std::string hex();

 private:
  void* context_;
};

/// Convenience: SHA-256 of one byte string, as 64 hex digits.
std::string sha256_hex(std::string_view bytes);

/// CRC-32C (Castagnoli) of the bytes, going on from `crc` (0 at the start). Source: RFC 3720,
/// appendix B.4.
uint32_t crc32c(std::string_view bytes, uint32_t crc = 0);

/// crc32c of two byte strings, one after the other, from the crc of each and the length of the
/// second; so that parts may be summed at the same time.
uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t second_num_bytes);

/// The rotated and offset form in which TensorFlow and LevelDB store a crc, so that a crc of data
/// that holds crcs stays sound.
uint32_t masked_crc32c(uint32_t crc);
/// The way back.
uint32_t unmasked_crc32c(uint32_t masked);

/// 64-bit FNV-1a, for digests that need no cryptographic strength and travel through a collective
/// as one int64.
int64_t fnv1a64(std::string_view bytes);

}  // namespace lockstep
