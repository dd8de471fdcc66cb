#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::checkpoint {

/// Writer for files in the safetensors format. A file is 8 bytes with the length of the header
/// (little-endian), the header, and the values. The header is JSON, padded with spaces to a
/// multiple of 8 bytes. The values are row-major, little-endian and without gaps. Wider types come
/// first, so that each tensor is aligned to its type.
///
/// Source: https://github.com/huggingface/safetensors, section "Format".
struct SafetensorsItem {
  std::string name;
  at::Tensor tensor;  ///< any device, any strides
};

/// Returns the tensors that hold a weight [O, ...] with zeros in the form `sparse-bitmask` of
/// compressed-tensors. A weight of a convolution is seen as [O, inputs]. Readers of files see the
/// weight itself.
///
///   NAME.compressed   the values that are not zero, row after row
///   NAME.bitmask      uint8 [O, ceil(inputs / 8)], the first input lowest
///   NAME.row_offsets  int64 [O, 1], the first value of each row
///   NAME.shape        int64
///
/// Returns the item itself if that takes no more bytes.
std::vector<SafetensorsItem> without_zeros(const SafetensorsItem& weight);

/// Writes the file atomically: temporary file, sync, rename, folder sync. A reader sees the old
/// file or the new one. Returns the size in bytes. `metadata` becomes `__metadata__`. Throws
/// Error(kCannotCreate, kIo), and then no file is left behind. Throws Error(kBug) for a dtype that
/// the format lacks or a repeated name.
int64_t write_safetensors(const std::filesystem::path& path,
                          const std::vector<SafetensorsItem>& items,
                          const std::map<std::string, std::string>& metadata);

}  // namespace lockstep::checkpoint
