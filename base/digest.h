#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace at {
class Tensor;
}

/// Digests and checksums: SHA-256, CRC-32C, FNV-1a. TFRecord framing is included, since it consists
/// of CRCs and lengths.
namespace lockstep {

/// SHA-256 over a sequence of byte strings (OpenSSL).
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& add(std::string_view bytes);
  /// Adds the tensor's bytes in row-major order, whatever its strides. CPU tensors only.
  Sha256& add(const at::Tensor& tensor);
  /// Returns 64 hex digits. Nothing may be added afterwards.
  std::string hex();

 private:
  void* context_;
};

/// Returns the SHA-256 of one byte string as 64 hex digits.
std::string sha256_hex(std::string_view bytes);

/// Returns the CRC-32C (Castagnoli) of the bytes, continued from `crc` (0 at the start). Source:
/// RFC 3720, appendix B.4.
uint32_t crc32c(std::string_view bytes, uint32_t crc = 0);

/// Returns the crc32c of two concatenated byte strings from the crc of each and the length of the
/// second. So parts can be hashed in parallel.
uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t second_num_bytes);

/// Returns the rotated and offset form in which TensorFlow and LevelDB store a crc. So the crc of
/// data that contains crcs stays effective.
uint32_t masked_crc32c(uint32_t crc);
/// Reverses masked_crc32c().
uint32_t unmasked_crc32c(uint32_t masked);

/// Returns the 64-bit FNV-1a hash, for digests without cryptographic strength that are sent through
/// a collective as one int64.
int64_t fnv1a64(std::string_view bytes);

/// Appends `data` framed as a TFRecord. A frame is the length (8 bytes, little endian), its masked
/// crc32c, the data, and the data's masked crc32c. tf.data.TFRecordDataset reads such files.
/// TensorBoard does if the data are Event messages.
///
///     std::string records;
///     for (const std::string& message : messages) append_tf_record(message, &records);
///     writer.append(records);
///
/// Source: tensorflow/core/lib/io/record_writer.h.
void append_tf_record(std::string_view data, std::string* records);

}  // namespace lockstep
