#pragma once

#include <string>

#include "infer/network/loaded_network.h"

namespace lockstep::daemon {

/// The network of a save, as its run evaluated it: rebuilt from what the save says of it, as
/// `lockstep ckpt export` does, with the moving averages of the weights where the run evaluated
/// them. A class in Python is called as it is in the run, where its file is found. Where the code
/// of the network is not there (a plug-in), the TorchScript that the run published beside the save
/// is taken, with the save's weights in it.
///
/// `where`: a folder of saves (its newest complete one), or the prefix of a save. `run_file`: where
/// else Python code may be; may be empty. Throws Error as read_saved_model() and rebuild_network().
infer::LoadedNetwork open_checkpoint(const std::string& where, const std::string& run_file);

}  // namespace lockstep::daemon
