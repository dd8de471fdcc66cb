#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/stop_request.h"
#include "dist/communicator.h"

/// Requests to a run, and a stop request that is passed on between ranks.
namespace lockstep::daemon {

/// Requests that a session leaves to the next one of the same run, when ranks are lost.
struct OpenRequests {
  bool stop = false, pause = false;
  std::vector<Change> changes;  ///< of values since the run began; the last of each key
};

/// Requests to a run: by signals and, on rank 0, through the control API. Any thread.
class Requests final : public StopRequest {
 public:
  static constexpr uint32_t kStop = 1, kEnd = 2;

  /// `signals` must outlive it.
  explicit Requests(StopRequest& signals) : signals_(signals) {}

  /// Have the effect of SIGUSR1 and SIGUSR2.
  void stop() { stop_asked_ = true; }
  void save() { ++num_saves_asked_; }
  /// Pauses training between two steps until it is called with false, or a stop is requested.
  void set_paused(bool paused) { pause_asked_ = paused; }
  /// Records a new value for a key. The caller has checked both.
  void change(const Change& change);
  /// Records a change that all ranks make.
  void note_made(const Change& change);
  OpenRequests open() const;
  /// Begins with the requests that an earlier session has left, on every rank. Rank 0 makes them
  /// again; the others keep them until that has reached them.
  void reopen(const OpenRequests& requests, bool is_root);
  /// Returns the requests that this rank itself received, as bits kStop and kEnd.
  uint32_t asked_here() const;
  /// Sets the function from which listen() reads the requests to other ranks, as the same bits. Do
  /// not call it while a loop runs.
  void set_ears(std::function<uint32_t()> ears) { ears_ = std::move(ears); }
  /// Returns the number of updates done, as last reported by the loop.
  int64_t step() const { return step_; }

  void set_stop_signals(const std::vector<int>& signals) override {
    signals_.set_stop_signals(signals);
  }
  bool stop_asked() const override {
    return stop_asked_ || signals_.stop_asked() || (heard_ & kStop) != 0;
  }
  bool end_asked() const override { return signals_.end_asked() || (heard_ & kEnd) != 0; }
  int64_t num_saves_asked() const override { return num_saves_asked_ + signals_.num_saves_asked(); }
  int64_t num_received(int signal_number) const override {
    return signals_.num_received(signal_number);
  }
  void listen() override {
    if (ears_) heard_ = ears_();
  }
  bool pause_asked() const override { return pause_asked_; }
  bool has_changes() const override { return has_changes_; }
  std::vector<Change> take_changes() override;
  void note_step(int64_t step) override;

 private:
  StopRequest& signals_;
  std::atomic<bool> stop_asked_{false}, pause_asked_{false}, has_changes_{false};
  std::atomic<int64_t> num_saves_asked_{0}, step_{0};
  std::atomic<uint32_t> heard_{0};
  std::function<uint32_t()> ears_;
  mutable std::mutex mutex_;
  std::vector<Change> changes_, made_;  // guarded by mutex_
  OpenRequests left_;                   ///< by an earlier session; guarded by mutex_
  int64_t left_until_ = 0;              ///< step at which all ranks know of left_
};

/// Passes on a stop request that one rank has received while another rank waits for its data
/// (train/step/trainer.h). The other ranks wait for that rank, so no step ends and no vote of
/// the ranks takes place.
///
/// A thread checks a few times a second whether this rank has a request. It notifies the other
/// ranks only if training has not ended after a while. So nothing is sent in a run whose steps end.
class StopNotice {
 public:
  /// `requests` receives the notices of other ranks from now on. The thread calls `is_training`.
  /// All arguments must outlive the object.
  StopNotice(std::unique_ptr<dist::Notice> notice, Requests& requests,
             std::function<bool()> is_training);
  ~StopNotice();

 private:
  using Clock = std::chrono::steady_clock;

  void run(const std::stop_token& ends);
  void look();

  const std::unique_ptr<dist::Notice> notice_;
  Requests& requests_;
  const std::function<bool()> is_training_;
  std::optional<Clock::time_point> asked_at_;
  std::jthread thread_;  // declared last: it uses the other members
};

}  // namespace lockstep::daemon
