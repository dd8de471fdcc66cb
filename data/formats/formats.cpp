// Detection of formats. Those without magic bytes are recognized by their size or by a checksum.
#include "data/formats/formats.h"

#include <algorithm>

#include "base/digest.h"
#include "base/files/files.h"

namespace lockstep::data {

UnknownFile read_start(const std::filesystem::path& path) {
  const files::Reader reader(path);
  const auto num_read = static_cast<size_t>(std::min(reader.num_bytes(), int64_t{100} * 3073));
  UnknownFile file{path, path.extension().string(), std::string(num_read, '\0'),
                   reader.num_bytes()};
  reader.read_at(0, file.bytes);
  return file;
}

bool is_npy(const UnknownFile& file) { return file.bytes.starts_with("\x93NUMPY"); }

bool is_tar(const UnknownFile& file) {
  return file.bytes.size() > 262 && file.bytes.compare(257, 5, "ustar") == 0 && !is_npy(file);
}

bool is_idx(const UnknownFile& file) {
  return file.bytes.size() >= 4 && file.bytes.starts_with(std::string_view("\0\0\x08", 3)) &&
         file.bytes[3] <= 4 && file.ending != ".bin" && !is_tar(file);
}

bool is_tfrecord(const UnknownFile& file) {
  const std::string_view bytes = file.bytes;
  if (bytes.size() < 12 || is_npy(file) || is_tar(file) || is_idx(file)) return false;
  uint32_t stored = 0;
  for (size_t i = 0; i < 4; ++i) stored |= uint32_t{static_cast<uint8_t>(bytes[8 + i])} << (8 * i);
  return unmasked_crc32c(stored) == crc32c(bytes.substr(0, 8));
}

/// True if the bytes at every `step`, from `place` on, are labels below num_classes. Only the start
/// of a file is examined.
static bool are_labels(std::string_view bytes, size_t step, size_t place, int num_classes) {
  for (size_t at = place; at < bytes.size(); at += step)
    if (static_cast<uint8_t>(bytes[at]) >= num_classes) return false;
  return true;
}

// A CIFAR record is a label (two with 100 classes) and 3072 pixels.

bool is_cifar10(const UnknownFile& file) {
  return file.ending == ".bin" && file.num_bytes % 3073 == 0 && are_labels(file.bytes, 3073, 0, 10);
}

bool is_cifar100(const UnknownFile& file) {
  return file.ending == ".bin" && file.num_bytes % 3074 == 0 &&
         are_labels(file.bytes, 3074, 0, 20) && are_labels(file.bytes, 3074, 1, 100);
}

}  // namespace lockstep::data
