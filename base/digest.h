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

/// The rotated and offset form in which TensorFlow and LevelDB store a crc, so that a crc of data
/// that holds crcs stays sound.
uint32_t masked_crc32c(uint32_t crc);

/// 64-bit FNV-1a, for digests that need no cryptographic strength and travel through a collective
/// as one int64.
int64_t fnv1a64(std::string_view bytes);

}  // namespace lockstep
