#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// Where the ranks compute, the same kind on all of them: "cpu"; "cuda": each on the GPU of its
/// local rank; "auto": so if every host has a GPU for each of its ranks, else on CPUs, which the
/// log says. On a host without an NVIDIA driver, auto opens no CUDA library.
///
/// Collective over `control`. Throws on every rank Error(kConfig) if cuda is wanted and some rank
/// has no GPU, Error(kUnavailable) if it lacks the CUDA module.
at::Device agree_on_device(const std::string& wanted, const dist::ProcessInfo& process,
                           dist::Communicator& control);

}  // namespace lockstep::daemon
