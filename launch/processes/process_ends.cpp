#include "launch/processes/process_ends.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::launch {

ProcessEnds::~ProcessEnds() {
  for (const auto& [pid, descriptor] : descriptors_) ::close(descriptor);
}

void ProcessEnds::add(pid_t pid) {
  if (descriptors_.contains(pid)) return;
  const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return;  // the process has ended, or this kernel is older than 5.3
  descriptors_[pid] = descriptor;
  had_any_ = true;
}

void ProcessEnds::wait(std::vector<pollfd> others, int timeout_ms) {
  for (const auto& [pid, descriptor] : descriptors_) others.push_back({descriptor, POLLIN, 0});
  if (::poll(others.data(), others.size(), timeout_ms) <= 0) return;
  // The watched processes are the last entries, in the map's order.
  auto source = others.end() - static_cast<std::ptrdiff_t>(descriptors_.size());
  for (auto each = descriptors_.begin(); each != descriptors_.end(); ++source) {
    if (source->revents == 0) {
      ++each;
      continue;
    }
    // Readable means that the process has ended.
    ::close(each->second);
    each = descriptors_.erase(each);
  }
}

}  // namespace lockstep::launch
