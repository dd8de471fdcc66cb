#pragma once

#include <filesystem>
#include <string>

#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// Throws Error(kConfig).everywhere() unless every rank sees what rank 0 writes into the folder: a
/// save's shards, written by all ranks, must come to lie in one place. Rank 0 writes a random text
/// and removes it afterwards; the others look for up to `patience_s`, since network file systems
/// may show a new file late. `host` is this rank's, for the message, which names the ranks and
/// hosts that see another folder. The folder must be there on rank 0. Also throws rank 0's fault of
/// writing (kCannotCreate, kIo). Collective; one rank alone writes nothing.
void require_shared(const std::filesystem::path& folder, const std::string& host,
                    dist::Communicator& ranks, double patience_s = 10);

}  // namespace lockstep::checkpoint
