#include "dist/mpi/open_mpi_settings.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "dist/mpi/p2p/p2p_channel.h"

namespace lockstep::dist::mpi {
namespace {

void prefer(const char* name, const char* value) { static_cast<void>(setenv(name, value, 0)); }

/// Lets a part of a tensor leave at once. Larger messages wait for an answer and are then split
/// over the connections, so the network is idle until the slower one is done. The two limits belong
/// together: if the user has set one, the other keeps Open MPI's value.
void prefer_parts_sent_at_once() {
  constexpr const char* kAtOnce = "OMPI_MCA_btl_tcp_eager_limit";
  constexpr const char* kLongest = "OMPI_MCA_btl_tcp_max_send_size";
  constexpr int64_t kHeaderBytes = 4096;
  if (std::getenv(kAtOnce) != nullptr || std::getenv(kLongest) != nullptr) return;
  const std::string part_bytes = std::to_string(P2pChannel::kPartBytes + kHeaderBytes);
  prefer(kAtOnce, part_bytes.c_str());
  prefer(kLongest, part_bytes.c_str());
}

/// True if all ranks are on one host, according to mpirun. A process without a launcher is alone.
bool are_on_one_host() {
  const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (ranks != nullptr && here != nullptr) return std::string_view(ranks) == here;
  return std::getenv("PMIX_NAMESPACE") == nullptr && std::getenv("PMI_RANK") == nullptr;
}

}  // namespace

void prefer_open_mpi_settings() {
  // On one connection, small control messages queue after large ones, and the two directions of a
  // link alternate: half of its speed.
  prefer("OMPI_MCA_btl_tcp_links", "2");
  prefer_parts_sent_at_once();
  // A single process needs no daemon, which only serves to start further processes.
  prefer("OMPI_MCA_ess_singleton_isolated", "1");
  if (!are_on_one_host()) return;
  // ob1 uses shared memory without probing network cards; hwloc then skips PCI devices too.
  prefer("OMPI_MCA_pml", "ob1");
  prefer("HWLOC_COMPONENTS", "-linuxio,-pci");
}

}  // namespace lockstep::dist::mpi
