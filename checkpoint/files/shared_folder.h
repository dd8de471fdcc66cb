#pragma once

#include <filesystem>
#include <string>

#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// Throws Error(kConfig).everywhere() unless every rank sees what rank 0 writes into the folder.
/// All ranks write shards, so they need one shared place.
///
/// Rank 0 writes a random text and removes it afterwards. The other ranks look for it for up to
/// `patience_s` seconds. Network file systems may show a new file late. `host` is this rank's host
/// name. The message names the ranks and hosts that see another folder. The folder must exist on
/// rank 0. Throws rank 0's own write fault too (kCannotCreate, kIo). Collective; a single rank
/// writes nothing.
void require_shared(const std::filesystem::path& folder, const std::string& host,
                    dist::Communicator& ranks, double patience_s = 10);

}  // namespace lockstep::checkpoint
