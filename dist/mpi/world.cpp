// Start and end of MPI, notices, and the choice of the communicator.
#include "dist/mpi/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/threads.h"
#include "dist/mpi/hierarchical_communicator.h"
#include "dist/mpi/p2p_channel.h"
#include "dist/mpi/p2p_communicator.h"
#include "dist/mpi/peer.h"
#include "dist/mpi/shared_memory_group.h"
#include "dist/mpi/shared_window.h"
#include "dist/mpi/shm_communicator.h"

namespace lockstep::dist::mpi {
namespace {

void prefer(const char* name, const char* value) { static_cast<void>(setenv(name, value, 0)); }

/// Lets a part of a tensor leave at once. Larger messages wait for an answer and are then split
/// over the connections, so the network is idle until the slower one is done. The two limits belong
/// together: if the user has set one, the other keeps Open MPI's value.
void prefer_eager_fragments() {
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
  prefer_eager_fragments();
  // A single process needs no daemon, which only serves to start further processes.
  prefer("OMPI_MCA_ess_singleton_isolated", "1");
  if (!are_on_one_host()) return;
  // ob1 uses shared memory without probing network cards; hwloc then skips PCI devices too.
  prefer("OMPI_MCA_pml", "ob1");
  prefer("HWLOC_COMPONENTS", "-linuxio,-pci");
}

/// Messages of all notices of a world, over a separate communicator that exists as long as the
/// world. A message that a notice did not receive before its destruction reaches no later notice;
/// settle() receives it.
class NoticeBoard {
 public:
  /// Takes over the communicator, on which only notices send. Collective.
  explicit NoticeBoard(OwnedComm comm) : comm_(std::move(comm)) {}

  /// Creates a notice. Every rank creates the same notices in the same order; not collective. The
  /// board outlives them.
  std::unique_ptr<Notice> make_notice();
  /// Receives all unread messages, since MPI must not end before that. Collective, without notices.
  void settle();

 private:
  class OneNotice;

  OwnedComm comm_;
  int num_notices_ = 0;
  int64_t num_told_ = 0, num_heard_ = 0;  ///< messages to each other rank, and from all others
};

// NoticeBoard: notices are plain MPI messages, which arrive without a matching call of the
// receiver. A notice polls them with MPI_Iprobe.

constexpr int kNumTags = 32768;  // guaranteed by the MPI standard

// Static, since MPI reads a message's bytes until it is sent.
constexpr std::array<uint32_t, 1U << Notice::kNumWords> kMessages{0, 1, 2, 3};

static uint32_t receive(const OwnedComm& comm, int from, int tag) {
  uint32_t words = 0;
  check_mpi(MPI_Recv(&words, 1, MPI_UINT32_T, from, tag, comm.get(), MPI_STATUS_IGNORE),
            "MPI_Recv");
  return words;
}

class NoticeBoard::OneNotice final : public Notice {
 public:
  OneNotice(NoticeBoard& board, int tag) : board_(board), tag_(tag) {}
  ~OneNotice() override {
    for (MPI_Request& request : under_way_)
      if (request != MPI_REQUEST_NULL) static_cast<void>(MPI_Request_free(&request));
  }
  OneNotice(const OneNotice&) = delete;
  OneNotice& operator=(const OneNotice&) = delete;

  void tell(uint32_t words) override {
    check(words < kMessages.size(), "a word beyond Notice::kNumWords");
    if ((words & ~told_) != 0) send(words & ~told_);
    told_ |= words;
    int done = 0;  // MPI connects to a host only during calls of this process
    check_mpi(MPI_Testall(static_cast<int>(under_way_.size()), under_way_.data(), &done,
                          MPI_STATUSES_IGNORE),
              "MPI_Testall");
  }

  uint32_t heard() override {
    while (true) {
      int is_there = 0;
      MPI_Status status;
      // Polls without receiving, so that this never blocks.
      check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, tag_, board_.comm_.get(), &is_there, &status),
                "MPI_Iprobe");
      if (is_there == 0) return heard_;
      heard_ |= receive(board_.comm_, status.MPI_SOURCE, tag_);
      ++board_.num_heard_;
    }
  }

 private:
  void send(uint32_t words) {
    for (int r = 0; r < board_.comm_.num_ranks(); ++r) {
      if (r == board_.comm_.rank()) continue;
      MPI_Request& request = under_way_.emplace_back(MPI_REQUEST_NULL);
      check_mpi(
          MPI_Isend(&kMessages.at(words), 1, MPI_UINT32_T, r, tag_, board_.comm_.get(), &request),
          "MPI_Isend");
    }
    ++board_.num_told_;
  }

  NoticeBoard& board_;
  const int tag_;
  uint32_t told_ = 0, heard_ = 0;
  std::vector<MPI_Request> under_way_;
};

std::unique_ptr<Notice> NoticeBoard::make_notice() {
  return std::make_unique<OneNotice>(*this, num_notices_++ % kNumTags);
}

// All ranks exchange the numbers of messages sent, so each knows how many it must still receive.
void NoticeBoard::settle() {
  std::vector<int64_t> told_N(static_cast<size_t>(comm_.num_ranks()));
  check_mpi(MPI_Allgather(&num_told_, 1, MPI_INT64_T, told_N.data(), 1, MPI_INT64_T, comm_.get()),
            "MPI_Allgather");
  const int64_t num_due = std::accumulate(told_N.begin(), told_N.end(), int64_t{0}) - num_told_;
  for (; num_heard_ < num_due; ++num_heard_)
    static_cast<void>(receive(comm_, MPI_ANY_SOURCE, MPI_ANY_TAG));
}

// make_communicator(): chooses the backend by the placement of ranks. It is shared memory on one
// host, the exchange by hosts on several, else messages between all ranks.

// Measured by bench/programs/allreduce.cpp. On one host, larger slots no longer fit in the caches.
// Between hosts, smaller slots mean too many messages, unless several peers share a link.
constexpr int64_t kOneHostSlotBytes = 256 << 10;
constexpr int64_t kManyHostsSlotBytes = 1 << 20;
// Messages above Open MPI's eager limit (64 KiB over TCP) wait for an answer before data flows.
// That costs nothing for a single message to a single host. With several messages, answers queue
// after other messages' bytes, and the link is idle for a fourth of the time.
constexpr int64_t kEagerPieceBytes = 56 << 10;

static int64_t slot_bytes(const std::vector<int>& hosts_N, int num_hosts,
                          const CommunicatorOptions& options) {
  const bool has_several_sums =
      TreeParts::of_hosts(hosts_N).owners.size() > static_cast<size_t>(num_hosts);
  const bool sends_several =
      num_hosts <= options.direct_ranks && (num_hosts > 2 || has_several_sums);
  return sends_several ? std::min(kManyHostsSlotBytes, num_hosts * kEagerPieceBytes)
                       : kManyHostsSlotBytes;
}

/// Returns the ranks of `comm` that can share memory with this one, in the same order.
static OwnedComm ranks_of_this_host(MPI_Comm comm, int rank) {
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  return OwnedComm(shared);
}

/// Creates a communicator of all ranks that can send messages; `make` creates its children.
template <typename Kind, typename... More>
static std::unique_ptr<Communicator> make_flat(OwnedComm comm, const CommunicatorOptions& options,
                                               const MakeCommunicator& make, More&&... more) {
  auto transport = std::make_unique<MpiTransport>(std::move(comm));
  // Owned by the communicator, so it outlives the callback.
  const OwnedComm& own = transport->comm();
  const auto split_off = [&own, make](int color, int key) { return make(split(own, color, key)); };
  return std::make_unique<Kind>(std::move(transport), options, split_off,
                                std::forward<More>(more)...);
}

static SharedMemoryGroup make_group(SharedSegments made, const OwnedComm& host,
                                    const OwnedComm& all, const CommunicatorOptions& options) {
  SharedMemoryGroup group(std::move(made.segments_M), host.rank(), made.layout, gather_peers(host));
  group.set_limits(options.timeout_s, options.slow_after_s);
  check_mpi(MPI_Barrier(all.get()), "MPI_Barrier");  // every member's head is initialised
  return group;
}

/// Creates the fastest communicator of these ranks: over a shared window if they are on one host
/// with enough space, else over messages. Its children are created in the same way. Collective.
static std::unique_ptr<Communicator> make_communicator(
    OwnedComm comm, const CommunicatorOptions& options,
    const std::shared_ptr<WindowKeeper>& keeper) {
  const MakeCommunicator make = [options, keeper](OwnedComm part) {
    CommunicatorOptions of_child = options;
    // hosts_N has the ranks of the parent, so children ask MPI.
    of_child.hosts_N.clear();
    return make_communicator(std::move(part), of_child, keeper);
  };
  const OwnedComm host = options.hosts_N.empty()
                             ? ranks_of_this_host(comm.get(), comm.rank())
                             : split(comm, options.hosts_N.at(comm.rank()), comm.rank());
  Hosts hosts = find_hosts(comm, host);
  const int num_hosts = hosts.num_hosts();
  CommunicatorOptions messages = options;
  if (num_hosts > 2) messages.piece_bytes = kEagerPieceBytes;
  const bool shares = options.shared_window && num_hosts < comm.num_ranks();
  if (shares && num_hosts == 1) {
    if (auto made = make_shared_segments(host, comm, {}, kOneHostSlotBytes, *keeper)) {
      SharedMemoryGroup group = make_group(std::move(*made), host, comm, options);
      return std::make_unique<ShmCommunicator>(std::move(comm), std::move(group), make,
                                               keeper->reserved_bytes());
    }
  } else if (shares) {
    const SegmentLayout layout =
        HostExchange::layout_for(hosts.hosts_N, hosts.hosts_N[comm.rank()]);
    if (auto made = make_shared_segments(host, comm, layout,
                                         slot_bytes(hosts.hosts_N, num_hosts, options), *keeper)) {
      SharedMemoryGroup group = make_group(std::move(*made), host, comm, options);
      return make_flat<HierarchicalCommunicator>(std::move(comm), messages, make, std::move(group),
                                                 std::move(hosts));
    }
  }
  return make_flat<P2pCommunicator>(std::move(comm), messages, make);
}

// World: start and end of MPI. MPI's own calls wait without limit, so each wait here has a
// deadline.

namespace {

// Limit for MPI_Abort. All ranks must end within 5 s after a deadline. The launcher already has the
// request and gets the same code from this exit. MPI_Abort may not return while the launcher takes
// other ranks from SIGTERM to SIGKILL.
constexpr auto kAbortLimit = std::chrono::milliseconds(100);

void start_mpi() {
  prefer_open_mpi_settings();
  int is_initialized = 0;
  check_mpi(MPI_Initialized(&is_initialized), "MPI_Initialized");
  check(is_initialized == 0, "a second mpi::World in one process");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (provided < MPI_THREAD_MULTIPLE)
    throw Error(ExitCode::kUnavailable, "dist.mpi",
                fmt::format("MPI_Init_thread gave thread level {}, but Lockstep needs "
                            "MPI_THREAD_MULTIPLE ({}): use an "
                            "MPI built with thread support",
                            provided, MPI_THREAD_MULTIPLE));
}

OwnedComm copy_of_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return OwnedComm(copy);
}

std::string node_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  return {name.data(), static_cast<size_t>(length)};
}

/// Finds rank and node. Ranks that can share memory are on one node; each node's first rank counts
/// it.
ProcessInfo find_place() {
  ProcessInfo info;
  info.launcher = "mpi";
  info.node = node_name();
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &info.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &info.world_size), "MPI_Comm_size");
  const OwnedComm node = ranks_of_this_host(MPI_COMM_WORLD, info.rank);
  info.local_rank = node.rank();
  info.local_world_size = node.num_ranks();
  const int is_first = info.local_rank == 0 ? 1 : 0;
  check_mpi(MPI_Allreduce(&is_first, &info.num_nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD),
            "MPI_Allreduce");
  return info;
}

/// Formats how long this process waits for MPI, and why.
std::string waits_text(double time_s, std::string_view cause) {
  return fmt::format("process {} on {} has waited {} s for MPI to {}", ::getpid(), host_name(),
                     time_s, cause);
}

constexpr std::string_view kNoStart =
    "start: a rank has not started, or the ranks' hosts cannot reach each other; find the rank "
    "without such a line";

[[noreturn]] void give_up(const std::string& text) {
  log::error("dist.mpi", text);
  static_cast<void>(log::flush(1.0));
  std::_Exit(static_cast<int>(ExitCode::kWatchdog));
}

}  // namespace

World::World(const StartLimits& limits) {
  {
    // MPI waits forever for a rank that does not start or cannot be reached.
    const Deadline slow(std::chrono::duration<double>(limits.slow_s), [limits] {
      log::warning("dist.mpi", waits_text(limits.slow_s, kNoStart));
    });
    std::optional<Deadline> hang;
    if (limits.hang_s > 0)
      hang.emplace(std::chrono::duration<double>(limits.hang_s), [limits] {
        give_up(waits_text(limits.hang_s, kNoStart) + "; --init-timeout sets a longer limit");
      });
    start_mpi();
    info_ = find_place();
    notices_ = std::make_unique<NoticeBoard>(copy_of_world());
  }
  keeper_ = std::make_shared<WindowKeeper>(info_.local_world_size);
}

World::~World() {
  std::optional<Deadline> limit;
  if (end_limit_s_)
    // All ranks have announced their end, so nothing is lost.
    limit.emplace(std::chrono::duration<double>(*end_limit_s_), [limit_s = *end_limit_s_] {
      give_up(waits_text(limit_s,
                         "end: another rank hangs, or its host cannot be reached; this one ends "
                         "without it"));
    });
  // Collective calls, in the same order on all ranks: windows first, then unread notices.
  keeper_.reset();
  try {
    notices_->settle();
  } catch (const Error& fault) {
    log::warning("dist.mpi", fault.what());
  }
  notices_.reset();
  static_cast<void>(MPI_Finalize());
}

std::unique_ptr<Communicator> World::make_communicator(const CommunicatorOptions& options) {
  return mpi::make_communicator(copy_of_world(), options, keeper_);
}

std::unique_ptr<Notice> World::make_notice() { return notices_->make_notice(); }

size_t World::num_windows() const { return keeper_->count(); }

void World::free_windows_from(size_t first) { keeper_->free_from(first); }

void World::abort(int exit_code) {
  static_cast<void>(log::flush(1.0));
  const Deadline end(kAbortLimit, [exit_code] { std::_Exit(exit_code); });
  static_cast<void>(MPI_Abort(MPI_COMM_WORLD, exit_code));
  std::_Exit(exit_code);  // MPI_Abort should not return
}

std::string World::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  return text.data();  // some versions count the closing zero in `length`
}

}  // namespace lockstep::dist::mpi
