// Memory that the ranks of one host share, by MPI windows or by a file.
#include "dist/mpi/shared_window.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace lockstep::dist::mpi {

// MPI windows. The free space is checked and all pages are allocated in advance: a later write
// without a page would kill the process.

namespace {

constexpr int64_t kWindowPageBytes = 4096;
constexpr int64_t kSmallestSlotBytes = 32 << 10;
constexpr int64_t kMessageBytes = 5 << 20;  // per rank: Open MPI's segment has 4 MiB

int64_t least_of(int64_t value, const OwnedComm& comm) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MIN, comm.get()),
            "MPI_Allreduce");
  return value;
}

/// Allocates all pages; false if that fails. Otherwise pages of a file in memory are allocated at
/// the first write, and a writer that gets none is killed.
bool make_pages(std::byte* begin, int64_t num_bytes) {
  if (madvise(begin, num_bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  std::memset(begin, 0, num_bytes);  // kernels before 5.14; the free space was checked just before
  return true;
}

/// Allocates a window of `num_bytes` after a page boundary; see begin_of_page().
MPI_Win make_window(const OwnedComm& comm, int64_t num_bytes) {
  MPI_Info info = MPI_INFO_NULL;
  check_mpi(MPI_Info_create(&info), "MPI_Info_create");
  check_mpi(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  void* own = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  const int code =
      MPI_Win_allocate_shared(num_bytes + kWindowPageBytes, 1, info, comm.get(), &own, &window);
  static_cast<void>(MPI_Info_free(&info));
  check_mpi(code, "MPI_Win_allocate_shared");
  return window;
}

/// Returns the next page boundary. Open MPI's segments start about 8 bytes after one, so wide loads
/// and stores would touch two cache lines. All processes find the same page, since mappings are
/// page-aligned.
std::byte* begin_of_page(void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto page = static_cast<uintptr_t>(kWindowPageBytes);
  return static_cast<std::byte*>(at) + (page - address % page) % page;
}

std::vector<std::byte*> segments_of(MPI_Win window, int num_members) {
  std::vector<std::byte*> segments_M;
  for (int m = 0; m < num_members; ++m) {
    MPI_Aint num_bytes = 0;
    int unit_bytes = 0;
    void* begin = nullptr;
    check_mpi(MPI_Win_shared_query(window, m, &num_bytes, &unit_bytes, &begin),
              "MPI_Win_shared_query");
    segments_M.push_back(begin_of_page(begin));
  }
  return segments_M;
}

void warn_no_shared_memory(const OwnedComm& host, int64_t free) {
  if (host.rank() != 0) return;
  log::warning(
      "dist.mpi",
      fmt::format("{} has {:.1f} MiB free, too little for a window shared by the {} ranks of this "
                  "host: they exchange messages, which is slower. Enlarge it (in a pod: an "
                  "emptyDir of medium Memory at /dev/shm)",
                  window_folder(), static_cast<double>(free) / (1 << 20), host.num_ranks()));
}

}  // namespace

int64_t WindowKeeper::reserved_bytes() const { return num_ranks_here_ * kMessageBytes; }

WindowKeeper::~WindowKeeper() { free_from(0); }

void WindowKeeper::free_from(size_t first) {
  for (size_t i = first; i < windows_.size(); ++i) static_cast<void>(MPI_Win_free(&windows_[i]));
  windows_.resize(std::min(first, windows_.size()));
}

std::string window_folder() {
  const char* chosen = std::getenv("OMPI_MCA_osc_sm_backing_directory");
  return chosen != nullptr ? chosen : "/dev/shm";
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs state {};
  if (statvfs(folder.c_str(), &state) != 0) return 0;
  return static_cast<int64_t>(state.f_bavail) * static_cast<int64_t>(state.f_frsize);
}

int64_t fitting_slot_bytes(SegmentLayout layout, int64_t largest, int64_t free_bytes) {
  for (layout.slot_bytes = largest; layout.slot_bytes >= kSmallestSlotBytes;
       layout.slot_bytes = layout.slot_bytes / 2 / kWindowPageBytes * kWindowPageBytes)
    if (2 * layout.total_bytes() <= free_bytes) return layout.slot_bytes;
  return 0;
}

std::optional<SharedSegments> make_shared_segments(const OwnedComm& host, const OwnedComm& all,
                                                   SegmentLayout layout, int64_t largest_slot_bytes,
                                                   WindowKeeper& keeper) {
  layout.num_members = host.num_ranks();
  const int64_t free = least_of(free_bytes(window_folder()), host);
  const int64_t fitting =
      fitting_slot_bytes(layout, largest_slot_bytes, free - keeper.reserved_bytes());
  // All hosts must use one slot size, since chunks are cut by it.
  layout.slot_bytes = least_of(fitting, all);
  if (fitting == 0) warn_no_shared_memory(host, free);
  if (layout.slot_bytes == 0) return std::nullopt;

  MPI_Win window = make_window(host, layout.segment_bytes(host.rank()));
  SharedSegments made{layout, segments_of(window, layout.num_members)};
  const bool is_made = make_pages(made.segments_M[host.rank()], layout.segment_bytes(host.rank()));
  // Agreed over all hosts, so that all ranks choose the same communicator.
  if (least_of(is_made ? 1 : 0, all) == 1) {
    keeper.keep(window);
    return made;
  }
  if (least_of(is_made ? 1 : 0, host) == 0) warn_no_shared_memory(host, free);
  check_mpi(MPI_Win_free(&window), "MPI_Win_free");
  return std::nullopt;
}

// An unlinked file. Unlike a window, it can use large pages and needs no collective call to free
// it.

namespace {

constexpr int64_t kLargePageBytes = int64_t{2} << 20;

/// Rank 0's message about its file. Sent in its memory layout.
struct Offer {
  std::array<char, 256> path{};     ///< empty: there is no file
  std::array<char, 256> why_not{};  ///< set if path is empty
};

Offer offer_of(const std::string& path, const std::string& why_not) {
  Offer offer;
  std::strncpy(offer.path.data(), path.c_str(), offer.path.size() - 1);
  std::strncpy(offer.why_not.data(), why_not.c_str(), offer.why_not.size() - 1);
  return offer;
}

int64_t whole_pages(int64_t num_bytes) {
  return (num_bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
}

double mib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

/// Removes files of processes that were killed before they could. Files of the last minute stay:
/// their processes may be in another container that shares the folder.
void remove_left_behind() {
  constexpr std::chrono::minutes kLeastAge{1};
  const std::string begin = "lockstep-";
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator(window_folder(), fault)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin)) continue;
    const int pid = std::atoi(name.c_str() + begin.size());
    const auto written = entry.last_write_time(fault);
    if (fault || pid <= 0 || std::filesystem::file_time_type::clock::now() - written < kLeastAge)
      continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) unlink(entry.path().c_str());
  }
}

/// Creates a file with all its pages. With ftruncate() alone, a write without a free page would
/// kill the writer.
Offer make_file(int64_t num_bytes, int64_t reserved_bytes) {
  remove_left_behind();
  const int64_t free = free_bytes(window_folder());
  if (free < num_bytes + reserved_bytes)
    return offer_of("", fmt::format("{} has {:.1f} MiB free of the {:.1f} MiB needed",
                                    window_folder(), mib(free), mib(num_bytes + reserved_bytes)));
  // Other names may exist: files of other runs, or of another container with equal process ids.
  for (int i = 0; i < 1000; ++i) {
    const std::string path = fmt::format("{}/lockstep-{}-{}", window_folder(), getpid(), i);
    const files::Descriptor file(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (file.get() < 0 && errno == EEXIST) continue;
    const int fault = file.get() < 0 ? errno : posix_fallocate(file.get(), 0, num_bytes);
    if (fault == 0) return offer_of(path, "");
    if (file.get() >= 0) unlink(path.c_str());
    return offer_of("", fmt::format("{}: {}", path, std::strerror(fault)));
  }
  return offer_of("", fmt::format("{} contains other runs' files", window_folder()));
}

/// Maps the file at a large-page boundary, so that this process can use its large pages.
std::shared_ptr<std::byte> map_file(const std::string& path, int64_t num_bytes) {
  const files::Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) return nullptr;
  const auto size = static_cast<size_t>(num_bytes), slack = static_cast<size_t>(kLargePageBytes);
  // Reserves the address range first, with room for the alignment.
  void* const room = mmap(nullptr, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(room);
  auto* const begin = static_cast<std::byte*>(room) + (slack - address % slack) % slack;
  const auto give_back = [room, num = size + slack](std::byte*) { munmap(room, num); };
  std::shared_ptr<std::byte> memory(begin, give_back);
  const void* const mapped =
      mmap(begin, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0);
  return mapped == MAP_FAILED ? nullptr : memory;
}

bool on_all(const OwnedComm& host, bool holds) {
  int all = holds ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, host.get()), "MPI_Allreduce");
  return all == 1;
}

/// Requests large pages. The first rank creates them, the others only map them. If the kernel
/// cannot, pages stay as they are.
void ask_for_large_pages(const OwnedComm& host, std::byte* begin, int64_t num_bytes) {
  for (const bool is_turn : {host.rank() == 0, host.rank() != 0}) {
    if (is_turn) static_cast<void>(madvise(begin, static_cast<size_t>(num_bytes), MADV_COLLAPSE));
    check_mpi(MPI_Barrier(host.get()), "MPI_Barrier");
  }
}

}  // namespace

SharedMemory map_shared_file(const OwnedComm& host, int64_t num_bytes, int64_t reserved_bytes) {
  const int64_t size = whole_pages(num_bytes);
  Offer offer;
  if (host.rank() == 0) offer = make_file(size, reserved_bytes);
  check_mpi(MPI_Bcast(&offer, sizeof(offer), MPI_BYTE, 0, host.get()), "MPI_Bcast");
  if (offer.path[0] == '\0') return {nullptr, offer.why_not.data()};
  std::shared_ptr<std::byte> memory = map_file(offer.path.data(), size);
  // All ranks must have opened the file before its name goes.
  const bool is_mapped = on_all(host, memory != nullptr);
  if (host.rank() == 0) unlink(offer.path.data());
  if (!is_mapped) return {nullptr, fmt::format("a rank cannot map {}", offer.path.data())};
  ask_for_large_pages(host, memory.get(), size);
  return {std::move(memory), ""};
}

}  // namespace lockstep::dist::mpi
