#include "daemon/serve/job_requests.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <utility>

#include "base/threads/signals_blocked.h"

namespace lockstep::daemon {
namespace {

constexpr std::chrono::milliseconds kLookEvery{20};

}  // namespace

struct JobRequests::Look {
  explicit Look(std::filesystem::path file) : cancel_file(std::move(file)) {}

  /// Runs in a separate thread, since the disk may hang.
  void run() {
    std::unique_lock lock(mutex);
    while (!is_over) {
      is_looking = true;
      // No lock during the disk access, so that the destructor never waits for it.
      lock.unlock();
      std::error_code ignored;
      const bool is_there = std::filesystem::exists(cancel_file, ignored);
      lock.lock();
      is_looking = false;
      if (is_there) is_cancelled = true;
      if (is_there) return;
      wake.wait_for(lock, kLookEvery, [this] { return is_over; });
    }
  }

  const std::filesystem::path cancel_file;
  std::atomic<bool> is_cancelled{false};
  std::mutex mutex;
  std::condition_variable wake;
  bool is_over = false, is_looking = false;  // guarded by mutex
};

JobRequests::JobRequests(train::StopRequest& signals, const std::filesystem::path& cancel_file)
    : signals_(signals),
      look_(std::make_shared<Look>(cancel_file)),
      saves_before_(signals.num_saves_asked()) {
  if (!cancel_file.empty()) {
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::thread([look = look_] { look->run(); });
  }
  for (size_t i = 0; i < received_before_.size(); ++i)
    received_before_[i] = signals.num_received(train::kCountedSignals[i]);
}

JobRequests::~JobRequests() {
  // The server itself stops at SIGUSR1 only.
  signals_.set_stop_signals({SIGUSR1});
  if (!thread_.joinable()) return;
  std::unique_lock lock(look_->mutex);
  look_->is_over = true;
  look_->wake.notify_all();
  const bool may_hang = look_->is_looking;
  lock.unlock();
  may_hang ? thread_.detach() : thread_.join();  // the thread shares ownership of all that it uses
}

bool JobRequests::is_cancelled() const { return look_->is_cancelled; }

int64_t JobRequests::num_saves_asked() const {
  // Only requests since the job began. The count reads as 0 while SIGUSR2 means stop.
  return std::max<int64_t>(0, signals_.num_saves_asked() - saves_before_);
}

int64_t JobRequests::num_received(int signal_number) const {
  const auto& all = train::kCountedSignals;
  const auto place =
      static_cast<size_t>(std::find(all.begin(), all.end(), signal_number) - all.begin());
  return signals_.num_received(signal_number) - received_before_.at(place);
}

}  // namespace lockstep::daemon
