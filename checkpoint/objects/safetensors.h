#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::checkpoint {

/// A file in the safetensors format: 8 bytes, the length of the header as a little-endian number;
/// the header, JSON, filled up with spaces to a multiple of 8; the tensors' values, row-major,
/// little-endian, without gaps. Wider types come first, so that each tensor is aligned to its type.
///
/// Source: the format's description at https://github.com/huggingface/safetensors.
struct SafetensorsItem {
  std::string name;
  at::Tensor tensor;  ///< any device, any strides
};

/// Writes the file so that a reader sees the old one or the new one: temporary file, sync, rename,
/// folder sync. Returns its size in bytes. `metadata` becomes `__metadata__`. Throws Error
/// (kCannotCreate, kIo; then nothing is left behind), Error(kBug) for a dtype that the format lacks
/// or a name given twice.
int64_t write_safetensors(const std::filesystem::path& path,
                          const std::vector<SafetensorsItem>& items,
                          const std::map<std::string, std::string>& metadata);

}  // namespace lockstep::checkpoint
