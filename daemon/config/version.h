#pragma once

#include <string>

namespace lockstep::daemon {

/// Facts about this binary. They must be equal on all ranks of a run, which is checked at the
/// start.
struct VersionFacts {
  std::string version;  ///< 0.1.0
  std::string
      commit;  ///< short git commit, "+changes" if the tree was not clean, "unknown" outside git
  std::string torch;
  std::string compiler;
  std::string build_type;
  std::string build_id;  ///< the linker's digest of this program; empty: not available
};

VersionFacts version_facts();
/// Versions of libraries that only some programs open.
struct OpenedLibraries {
  std::string mpi, nccl, python;
};
/// Returns the lines for --version.
std::string version_text(const std::string& program, const OpenedLibraries& libraries);

}  // namespace lockstep::daemon
