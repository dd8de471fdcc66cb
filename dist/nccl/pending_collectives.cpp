#include "dist/nccl/pending_collectives.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep::dist::nccl {

void PendingCollectives::add(std::shared_ptr<Event> begun, std::shared_ptr<Event> done,
                             std::string what, Clock::time_point now) {
  pending_.push_back({std::move(begun), std::move(done), std::move(what), ++num_added_, now});
}

std::optional<std::string> PendingCollectives::overdue(Clock::time_point now, double timeout_s) {
  // One stream: collectives end in the order in which they were enqueued.
  while (!pending_.empty() && pending_.front().done->is_reached()) {
    pending_.pop_front();
    last_progress_ = now;
  }
  if (pending_.empty()) return std::nullopt;
  const Pending& oldest = pending_.front();
  // The stream has not reached the collective: this rank still computes, no peer is late.
  if (!oldest.begun->is_reached()) {
    last_progress_ = now;
    return std::nullopt;
  }
  const auto since = std::max(oldest.enqueued, last_progress_);
  if (std::chrono::duration<double>(now - since).count() <= timeout_s) return std::nullopt;
  return fmt::format("collective {} ({})", oldest.number, oldest.what);
}

}  // namespace lockstep::dist::nccl
