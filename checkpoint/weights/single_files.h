#pragma once

#include <memory>

#include "checkpoint/weights/weights_file.h"

/// The kinds of WeightsFile that are one file each (checkpoint/weights/weights_file.h). Both throw
/// Error(kBadData) where the file is cut, damaged or not of this kind.
namespace lockstep::checkpoint {

/// A state dict of torch.save(). Each value's bytes are compared with the archive's checksum, if it
/// was written with any.
std::unique_ptr<WeightsFile> open_torch_file(const std::string& path);

/// The format of base/tensors/safetensors_header.h. It has no checksums.
std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path);

}  // namespace lockstep::checkpoint
