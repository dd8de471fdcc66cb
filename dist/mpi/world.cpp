// Start and end of MPI, and notices.
#include "dist/mpi/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/threads.h"
#include "dist/cpu/make_communicator.h"
#include "dist/cpu/p2p_channel.h"
#include "dist/mpi/comm.h"
#include "dist/mpi/rank_places.h"

namespace lockstep::dist::mpi {
namespace {

void prefer(const char* name, const char* value) { static_cast<void>(setenv(name, value, 0)); }

/// Lets a part of a tensor leave at once. Before a larger message there is an exchange, during
/// which the network is idle. The two limits belong together: if the user has set one, the other
/// keeps Open MPI's value.
void prefer_eager_fragments() {
  constexpr const char* kAtOnce = "OMPI_MCA_btl_tcp_eager_limit";
  constexpr const char* kLongest = "OMPI_MCA_btl_tcp_max_send_size";
  constexpr int64_t kHeaderBytes = 4096;
  if (std::getenv(kAtOnce) != nullptr || std::getenv(kLongest) != nullptr) return;
  const std::string part_bytes = std::to_string(cpu::P2pChannel::kPartBytes + kHeaderBytes);
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

// World: start and end of MPI. MPI's own calls wait without limit, so each wait here has a
// deadline.

namespace {

// Limit for MPI_Abort. All ranks must end within 5 s after a deadline. The launcher already has the
// request and gets the same code from this exit. MPI_Abort may not return while the launcher takes
// other ranks from SIGTERM to SIGKILL.
constexpr auto kAbortLimit = std::chrono::milliseconds(100);
// Time in which the launcher learns of the end of another rank.
constexpr auto kFirstCause = std::chrono::milliseconds(100);

// Open MPI's segment of a rank in shared memory has 4 MiB. Its pages are allocated at first use,
// and a rank that gets no page is killed.
constexpr int64_t kMessageBytes = 5 << 20;

/// Longest time for the ranks to form their new communicator.
constexpr double kLongestForming_s = 20;

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

std::string node_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  return {name.data(), static_cast<size_t>(length)};
}

/// Finds rank and node. Ranks that can share memory are on one node; each node's first rank counts
/// it.
ProcessInfo find_place(MPI_Comm ranks) {
  ProcessInfo info;
  info.launcher = "mpi";
  info.node = node_name();
  check_mpi(MPI_Comm_rank(ranks, &info.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(ranks, &info.world_size), "MPI_Comm_size");
  const OwnedComm node(ranks_of_this_host(ranks, info.rank));
  info.local_rank = node.rank();
  info.local_world_size = node.num_ranks();
  const int is_first = info.local_rank == 0 ? 1 : 0;
  check_mpi(MPI_Allreduce(&is_first, &info.num_nodes, 1, MPI_INT, MPI_SUM, ranks), "MPI_Allreduce");
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

World::World(const StartLimits& limits, int num_spares) {
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
    places_ = std::make_unique<RankPlaces>(num_spares);
    if (!is_spare()) settle_in();
  }
}

void World::settle_in() {
  info_ = find_place(places_->comm());
  if (places_->have_spares()) info_.spares = places_->spares();
  info_.processes_N = places_->rank_processes();
  notices_ = std::make_unique<NoticeBoard>(OwnedComm(copy_of(places_->comm())));
}

bool World::is_spare() const { return places_->is_spare(); }

void World::end_without_agreement() {
  log::error("dist.mpi",
             "the ranks could not form a world without lost ones: the run ends, and continues from "
             "its last checkpoint");
  abort(static_cast<int>(ExitCode::kUnavailable));
}

bool World::wait_for_rank() {
  if (!places_->wait_for_rank()) return false;
  const Deadline limit(std::chrono::duration<double>(kLongestForming_s),
                       [this] { end_without_agreement(); });
  settle_in();
  return true;
}

bool World::can_replace(const Error& error) const {
  if (!places_->have_spares() || error.on_every_rank()) return false;
  // A rank that hangs is late for all others; it is killed.
  return places_->lacks_rank() || error.code() == ExitCode::kWatchdog;
}

void World::end_late(double patience_s) { places_->end_late(patience_s); }

void World::replace_lost(double patience_s) {
  // Not destroyed: a message of the lost process may be under way.
  static_cast<void>(notices_.release());
  const Deadline limit(std::chrono::duration<double>(4 * patience_s + kLongestForming_s),
                       [this] { end_without_agreement(); });
  places_->replace_lost(patience_s);
  settle_in();
}

void World::end_ranks() { places_->end_world(); }

bool World::has_lost() const { return places_->have_lost(); }

World::~World() {
  std::optional<Deadline> limit;
  if (end_limit_s_)
    // All ranks have announced their end, so nothing is lost.
    limit.emplace(std::chrono::duration<double>(*end_limit_s_), [limit_s = *end_limit_s_] {
      give_up(waits_text(limit_s,
                         "end: another rank hangs, or its host cannot be reached; this one ends "
                         "without it"));
    });
  // MPI_Finalize would wait forever for a process that was lost.
  if (has_lost()) {
    static_cast<void>(notices_.release());
    static_cast<void>(places_.release());
    return;
  }
  try {
    if (notices_ != nullptr) notices_->settle();
  } catch (const Error& fault) {
    log::warning("dist.mpi", fault.what());
  }
  notices_.reset();
  places_.reset();
  static_cast<void>(MPI_Finalize());
}

std::unique_ptr<Communicator> World::make_communicator(const cpu::CommunicatorOptions& options) {
  // MPI waits forever for a rank that is lost now. Others may only be late, as in any call.
  std::optional<Deadline> limit;
  if (places_->have_spares())
    limit.emplace(std::chrono::duration<double>(options.timeout_s),
                  [this] { end_without_agreement(); });
  cpu::CommunicatorOptions own = options;
  own.reserved_bytes = info_.local_world_size * kMessageBytes;
  if (places_->have_spares() && places_->span_hosts())
    own.find_lost = [places = places_.get()] { return places->find_lost(); };
  return cpu::make_communicator(std::make_unique<MpiRanks>(copy_of(places_->comm()), info_.rank),
                                own);
}

std::unique_ptr<Notice> World::make_notice() { return notices_->make_notice(); }

void let_cause_be_told(int exit_code) {
  if (exit_code == static_cast<int>(ExitCode::kUnavailable))
    std::this_thread::sleep_for(kFirstCause);
}

void World::abort(int exit_code) {
  static_cast<void>(log::flush(1.0));
  let_cause_be_told(exit_code);
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
