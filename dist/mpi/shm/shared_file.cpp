// Shared memory by an unlinked file. Unlike a window, it can use large pages and needs no
// collective call to free it.
#include "dist/mpi/shm/shared_file.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dist/mpi/shm/shared_window.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace lockstep::dist::mpi {
namespace {

constexpr int64_t kLargePageBytes = int64_t{2} << 20;

/// Rank 0's message about its file. Sent in its memory layout.
struct Offer {
  std::array<char, 256> path{};     ///< empty: there is no file
  std::array<char, 256> why_not{};  ///< set if path is empty
};

void set(std::array<char, 256>* text, const std::string& value) {
  std::strncpy(text->data(), value.c_str(), text->size() - 1);
}

int64_t whole_pages(int64_t num_bytes) {
  return (num_bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
}

double mib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (1 << 20); }

/// A file descriptor, closed at the end.
class File {
 public:
  File(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags, 0600)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

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
  Offer offer;
  remove_left_behind();
  const int64_t free = free_bytes(window_folder());
  if (free < num_bytes + reserved_bytes) {
    set(&offer.why_not, fmt::format("{} has {:.1f} MiB free of the {:.1f} MiB that they take",
                                    window_folder(), mib(free), mib(num_bytes + reserved_bytes)));
    return offer;
  }
  std::string path;
  // Other names may exist: files of other runs, or of another container with equal process ids.
  for (int i = 0; i < 1000; ++i) {
    path = fmt::format("{}/lockstep-{}-{}", window_folder(), getpid(), i);
    const File file(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC);
    if (file.get() < 0 && errno == EEXIST) continue;
    const int fault = file.get() < 0 ? errno : posix_fallocate(file.get(), 0, num_bytes);
    if (fault == 0) {
      set(&offer.path, path);
      return offer;
    }
    if (file.get() >= 0) unlink(path.c_str());
    set(&offer.why_not, fmt::format("{}: {}", path, std::strerror(fault)));
    return offer;
  }
  set(&offer.why_not, fmt::format("{} holds other runs' files", window_folder()));
  return offer;
}

/// Maps the file at a large-page boundary, so that this process can use its large pages.
std::shared_ptr<std::byte> map_file(const std::string& path, int64_t num_bytes) {
  const File file(path, O_RDWR | O_CLOEXEC);
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
