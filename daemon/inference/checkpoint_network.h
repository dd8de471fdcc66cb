#pragma once

#include <string>

#include "infer/network/loaded_network.h"

namespace lockstep::daemon {

/// Opens the network of a checkpoint as its run evaluated it: with the moving averages of the
/// weights if the run evaluated these. The network is rebuilt from the settings in the checkpoint,
/// as `lockstep ckpt export` does. A class in Python is called as in the run, if its file is found.
/// The network's code may not be available (a plug-in). Then the TorchScript that the run published
/// is used, with the checkpoint's weights.
///
/// `where`: folder of checkpoints (its newest complete one) or prefix of one. `run_file`: another
/// place to search for Python code; may be empty. Throws Error as read_saved_model() and
/// rebuild_network() do.
infer::LoadedNetwork open_checkpoint(const std::string& where, const std::string& run_file);

}  // namespace lockstep::daemon
