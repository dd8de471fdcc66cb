#pragma once

#include <memory>

#include "checkpoint/weights/weights_file.h"

/// Openers of the single-file kinds of WeightsFile (checkpoint/weights/weights_file.h). Both throw
/// Error(kBadData) for a file that is cut, damaged or of another kind.
namespace lockstep::checkpoint {

/// Opens a state dict of torch.save(). Each value's bytes are checked against the archive's
/// checksum, if it has one.
std::unique_ptr<WeightsFile> open_torch_file(const std::string& path);

/// Opens a file in the format of base/tensors/safetensors_header.h, which has no checksums.
std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path);

}  // namespace lockstep::checkpoint
