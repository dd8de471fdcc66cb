// Magic bytes are checked first, since endings can be wrong. Formats without them are recognized by
// their size or by a checksum.
#include "data/formats/formats.h"

#include <algorithm>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"

namespace lockstep::data {
namespace {

/// True if the bytes begin with a TFRecord's length and its checksum.
bool begins_with_record(std::string_view bytes) {
  if (bytes.size() < 12) return false;
  uint32_t stored = 0;
  for (size_t i = 0; i < 4; ++i) stored |= uint32_t{static_cast<uint8_t>(bytes[8 + i])} << (8 * i);
  return unmasked_crc32c(stored) == crc32c(bytes.substr(0, 8));
}

/// True if the bytes at every `step`, from `place` on, are labels below num_classes. Only the start
/// of a file is examined.
bool are_labels(std::string_view bytes, size_t step, size_t place, int num_classes) {
  for (size_t at = place; at < bytes.size(); at += step)
    if (static_cast<uint8_t>(bytes[at]) >= num_classes) return false;
  return true;
}

/// Returns the format of a .bin file: CIFAR if size and labels fit, else tokens.
std::string format_of_bin(std::string_view bytes, int64_t file_bytes) {
  // A record is a label (two with 100 classes) and 3072 pixels.
  if (file_bytes % 3073 == 0 && are_labels(bytes, 3073, 0, 10)) return "cifar10";
  if (file_bytes % 3074 == 0 && are_labels(bytes, 3074, 0, 20) && are_labels(bytes, 3074, 1, 100))
    return "cifar100";
  return "tokens";
}

std::string format_of_file(const std::filesystem::path& path) {
  const files::Reader reader(path);
  std::string bytes(static_cast<size_t>(std::min(reader.num_bytes(), int64_t{100} * 3073)), '\0');
  reader.read_at(0, bytes);
  const std::string ending = path.extension().string();
  if (bytes.starts_with("\x93NUMPY")) return "npy";
  if (bytes.size() > 262 && bytes.compare(257, 5, "ustar") == 0) return "webdataset";
  if (bytes.size() >= 4 && bytes.starts_with(std::string_view("\0\0\x08", 3)) && bytes[3] <= 4 &&
      ending != ".bin")
    return "idx";
  if (begins_with_record(bytes)) return "tfrecord";
  if (ending == ".csv") return "image_csv";
  if (ending == ".safetensors") return "safetensors";
  if (ending == ".tfrecord" || ending == ".tfrecords") return "tfrecord";
  if (ending == ".tar") return "webdataset";
  if (ending == ".bin") return format_of_bin(bytes, reader.num_bytes());
  if (is_image_name(path)) return "images";
  throw Error(ExitCode::kConfig, "data",
              path.string() +
                  ": unknown format; give `type`: idx, cifar10, cifar100, image_folder, images, "
                  "image_csv, tfrecord, npy, safetensors, tokens or webdataset");
}

/// Returns the ending without a shard suffix: .tfrecord of train.tfrecord-00001-of-00004. All
/// images share one ending.
std::string ending_of(const std::filesystem::path& path) {
  if (is_image_name(path)) return ".image";
  const std::string ending = path.extension().string();
  return ending.substr(0, ending.find('-'));
}

}  // namespace

std::string detect_format(const std::string& path) {
  // A folder with folders is one of classes, whatever its files are.
  if (holds_folders(path)) return "image_folder";
  const std::vector<std::filesystem::path> files = expand_files(path);
  for (const std::filesystem::path& file : files)
    if (!is_folder(path) && ending_of(file) != ending_of(files.front()))
      throw Error(ExitCode::kConfig, "data",
                  path + " names files of several formats, as " + files.front().string() + " and " +
                      file.string() + ": give a narrower pattern, or `type`");
  return format_of_file(files.front());
}

}  // namespace lockstep::data
