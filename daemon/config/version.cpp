#include "daemon/config/version.h"

#include <fmt/format.h>
#include <torch/version.h>

#include "build_commit.h"

namespace lockstep::daemon {

VersionFacts version_facts() {
  return {LOCKSTEP_VERSION, LOCKSTEP_COMMIT, TORCH_VERSION, "g++ " __VERSION__,
          LOCKSTEP_BUILD_TYPE};
}

std::string version_text(const std::string& program, const OpenedLibraries& libraries) {
  const VersionFacts facts = version_facts();
  return fmt::format(
      "{} {}\ncommit    {}\nLibTorch  {}\nMPI       {}\nNCCL      {}\nPython    {}\ncompiler  "
      "{}\nbuild     {}",
      program, facts.version, facts.commit, facts.torch, libraries.mpi, libraries.nccl,
      libraries.python, facts.compiler, facts.build_type);
}

}  // namespace lockstep::daemon
