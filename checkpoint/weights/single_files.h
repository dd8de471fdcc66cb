#pragma once

#include <memory>

#include "checkpoint/weights/weights_file.h"

/// The kinds of WeightsFile that are one file each (checkpoint/weights/weights_file.h). Both throw
/// Error(kBadData) where the file is cut, damaged or not of this kind.
namespace lockstep::checkpoint {

/// A state dict of torch.save(). Each value's bytes are compared with the archive's checksum.
std::unique_ptr<WeightsFile> open_torch_file(const std::string& path);

/// The format of checkpoint/objects/safetensors.h. It has no checksums.
std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path);

}  // namespace lockstep::checkpoint
