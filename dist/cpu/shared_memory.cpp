// Memory that the ranks of one host share: a file whose name is removed once all have mapped it.
// The free space is checked and all pages are allocated in advance: a later write without a page
// would kill the process.
#include "dist/cpu/shared_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/process.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace lockstep::dist::cpu {

namespace {

constexpr int64_t kLargePageBytes = int64_t{2} << 20;
constexpr int64_t kSmallestSlotBytes = 32 << 10;

/// The first rank's message about its file. Sent in its memory layout.
struct Offer {
  std::array<char, 256> path{};     ///< empty: there is no file
  std::array<char, 256> why_not{};  ///< set if path is empty
};

double mib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

int64_t least_of(const RankGroup& ranks, int64_t value) {
  const std::vector<int64_t> all_N = gather(ranks, value);
  return *std::min_element(all_N.begin(), all_N.end());
}

bool on_all(const RankGroup& ranks, bool holds) { return least_of(ranks, holds ? 1 : 0) == 1; }

/// Allocates all pages; false if that fails. Otherwise pages of a file in memory are allocated at
/// the first write, and a writer that gets none is killed.
bool make_pages(std::byte* begin, int64_t num_bytes) {
  if (madvise(begin, num_bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  std::memset(begin, 0, num_bytes);  // kernels before 5.14; the free space was checked just before
  return true;
}

Offer offer_of(const std::string& path, const std::string& why_not) {
  Offer offer;
  std::strncpy(offer.path.data(), path.c_str(), offer.path.size() - 1);
  std::strncpy(offer.why_not.data(), why_not.c_str(), offer.why_not.size() - 1);
  return offer;
}

/// Removes files of processes that were killed before they could. Files of the last minute stay:
/// their processes may be in another container that shares the folder.
void remove_left_behind() {
  constexpr std::chrono::minutes kLeastAge{1};
  const std::string begin = "lockstep-";
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator(shared_memory_folder(), fault)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin)) continue;
    const int pid = std::atoi(name.c_str() + begin.size());
    const auto written = entry.last_write_time(fault);
    if (fault || pid <= 0 || std::filesystem::file_time_type::clock::now() - written < kLeastAge)
      continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) unlink(entry.path().c_str());
  }
}

/// Creates a file of that size, whose pages do not exist yet.
Offer make_file(int64_t num_bytes, int64_t reserved_bytes) {
  remove_left_behind();
  const std::string folder = shared_memory_folder();
  const int64_t free = free_bytes(folder);
  if (free < num_bytes + reserved_bytes)
    return offer_of("", fmt::format("{} has {:.1f} MiB free of the {:.1f} MiB needed", folder,
                                    mib(free), mib(num_bytes + reserved_bytes)));
  // A name that no other container has: each may have a folder of its own, and equal process ids.
  const auto token = uint64_t{std::random_device()()} << 32 | std::random_device()();
  const std::string path = fmt::format("{}/lockstep-{}-{:x}", folder, getpid(), token);
  const files::Descriptor file(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() >= 0 && ftruncate(file.get(), num_bytes) == 0) return offer_of(path, "");
  const int fault = errno;
  if (file.get() >= 0) unlink(path.c_str());
  return offer_of("", fmt::format("{}: {}", path, std::strerror(fault)));
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

/// Maps a file of the first rank in all ranks of the host. Its pages do not exist yet. Collective.
SharedMemory map_on_host(const RankGroup& host, int64_t num_bytes, int64_t reserved_bytes) {
  const bool is_first = host.rank() == 0;
  const Offer offer =
      gather(host, is_first ? make_file(num_bytes, reserved_bytes) : Offer()).front();
  if (offer.path[0] == '\0') return {nullptr, offer.why_not.data()};
  std::shared_ptr<std::byte> memory = map_file(offer.path.data(), num_bytes);
  // All ranks must have opened the file before its name goes.
  const bool is_mapped = on_all(host, memory != nullptr);
  if (is_first) unlink(offer.path.data());
  // Containers of one host may have a folder each.
  if (!is_mapped) return {nullptr, fmt::format("a rank cannot map {}", offer.path.data())};
  return {std::move(memory), ""};
}

/// Requests large pages. The first rank creates them, the others only map them. If the kernel
/// cannot, pages stay as they are.
void ask_for_large_pages(const RankGroup& host, std::byte* begin, int64_t num_bytes) {
  for (const bool is_turn : {host.rank() == 0, host.rank() != 0}) {
    if (is_turn) static_cast<void>(madvise(begin, static_cast<size_t>(num_bytes), MADV_COLLAPSE));
    static_cast<void>(least_of(host, 0));  // a barrier
  }
}

// A program may create many groups, and hears once that they share no memory.
std::atomic<bool> is_said = false;
const ProcessState warned("warning of missing shared memory", [] { is_said = false; });

void warn_no_shared_memory(const RankGroup& host, const std::string& why_not) {
  if (host.rank() != 0 || is_said.exchange(true)) return;
  log::warning(
      "dist.cpu",
      fmt::format("{}: the ranks of this host exchange messages instead of sharing memory, "
                  "which is slower. Enlarge {} (in a pod: an emptyDir of medium Memory at "
                  "/dev/shm)",
                  why_not, shared_memory_folder()));
}

}  // namespace

// The variable is Open MPI's, for its windows.
std::string shared_memory_folder() {
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
       layout.slot_bytes = layout.slot_bytes / 2 / kPageBytes * kPageBytes)
    if (2 * layout.total_bytes() <= free_bytes) return layout.slot_bytes;
  return 0;
}

std::optional<SharedSegments> make_shared_segments(const RankGroup& host, const RankGroup& all,
                                                   SegmentLayout layout, int64_t largest_slot_bytes,
                                                   int64_t reserved_bytes) {
  layout.num_members = host.num_ranks();
  const int64_t free = least_of(host, free_bytes(shared_memory_folder()));
  const int64_t fitting = fitting_slot_bytes(layout, largest_slot_bytes, free - reserved_bytes);
  if (fitting == 0)
    warn_no_shared_memory(host,
                          fmt::format("{} has {:.1f} MiB free", shared_memory_folder(), mib(free)));
  // All hosts must use one slot size, since chunks are cut by it.
  layout.slot_bytes = least_of(all, fitting);
  if (layout.slot_bytes == 0) return std::nullopt;

  SharedMemory mapped = map_on_host(host, layout.total_bytes(), reserved_bytes);
  SharedSegments made{layout, {}, std::move(mapped.begin)};
  int64_t at = 0;
  for (int m = 0; made.memory != nullptr && m < layout.num_members; at += layout.segment_bytes(m++))
    made.segments_M.push_back(made.memory.get() + at);
  // Each rank allocates its own pages, so that they are on its memory node.
  const bool is_made = made.memory != nullptr &&
                       make_pages(made.segments_M[host.rank()], layout.segment_bytes(host.rank()));
  if (!on_all(host, is_made))
    warn_no_shared_memory(host, made.memory == nullptr ? mapped.why_not : "its pages were refused");
  // Agreed over all hosts, so that all ranks choose the same communicator.
  if (!on_all(all, is_made)) return std::nullopt;
  return made;
}

SharedMemory map_shared_memory(const RankGroup& host, int64_t num_bytes, int64_t reserved_bytes) {
  const int64_t size = (num_bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
  SharedMemory mapped = map_on_host(host, size, reserved_bytes);
  if (mapped.begin == nullptr) return mapped;
  const bool is_made = host.rank() != 0 || make_pages(mapped.begin.get(), size);
  if (!on_all(host, is_made)) return {nullptr, shared_memory_folder() + " refused its pages"};
  ask_for_large_pages(host, mapped.begin.get(), size);
  return mapped;
}

}  // namespace lockstep::dist::cpu
