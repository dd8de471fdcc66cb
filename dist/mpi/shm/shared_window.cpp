// Shared memory by MPI windows. The free space is checked and all pages are allocated in advance: a
// later write without a page would kill the process.
#include "dist/mpi/shm/shared_window.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/log.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace lockstep::dist::mpi {
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

void say_why_not(const OwnedComm& host, int64_t free) {
  if (host.rank() != 0) return;
  log::warning(
      "dist.mpi",
      fmt::format("{} has {:.1f} MiB free, too few for a window that the {} ranks of this "
                  "host share: they exchange messages, which is slower. Give it more (in "
                  "a pod: an emptyDir of medium Memory at /dev/shm)",
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

int64_t fitting_slot_bytes(RoomLayout layout, int64_t largest, int64_t free_bytes) {
  for (layout.slot_bytes = largest; layout.slot_bytes >= kSmallestSlotBytes;
       layout.slot_bytes = layout.slot_bytes / 2 / kWindowPageBytes * kWindowPageBytes)
    if (2 * layout.total_bytes() <= free_bytes) return layout.slot_bytes;
  return 0;
}

std::optional<SharedSegments> make_shared_segments(const OwnedComm& host, const OwnedComm& all,
                                                   RoomLayout layout, int64_t largest_slot_bytes,
                                                   WindowKeeper& keeper) {
  layout.num_members = host.num_ranks();
  const int64_t free = least_of(free_bytes(window_folder()), host);
  const int64_t fitting =
      fitting_slot_bytes(layout, largest_slot_bytes, free - keeper.reserved_bytes());
  // All hosts must use one slot size, since chunks are cut by it.
  layout.slot_bytes = least_of(fitting, all);
  if (fitting == 0) say_why_not(host, free);
  if (layout.slot_bytes == 0) return std::nullopt;

  MPI_Win window = make_window(host, layout.segment_bytes(host.rank()));
  SharedSegments made{layout, segments_of(window, layout.num_members)};
  const bool is_made = make_pages(made.segments_M[host.rank()], layout.segment_bytes(host.rank()));
  // Agreed over all hosts, so that all ranks choose the same communicator.
  if (least_of(is_made ? 1 : 0, all) == 1) {
    keeper.keep(window);
    return made;
  }
  if (least_of(is_made ? 1 : 0, host) == 0) say_why_not(host, free);
  check_mpi(MPI_Win_free(&window), "MPI_Win_free");
  return std::nullopt;
}

}  // namespace lockstep::dist::mpi
