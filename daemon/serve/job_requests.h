#pragma once

#include <array>
#include <atomic>
#include <filesystem>

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// What one job of a server is asked for: signals that have come since it began, and, where the
/// rank has the job's file `cancel`, that file. Any thread.
class JobRequests final : public train::StopRequest {
 public:
  /// `signals` must outlive it. An empty `cancel_file`: this rank does not look.
  JobRequests(train::StopRequest& signals, std::filesystem::path cancel_file);
  /// Signals have their usual meaning again, whatever the job's preemption.signals said.
  ~JobRequests() override;
  JobRequests(const JobRequests&) = delete;
  JobRequests& operator=(const JobRequests&) = delete;

  /// Looks at most every 20 ms.
  bool is_cancelled() const;

  void set_stop_signals(const std::vector<int>& signals) override {
    signals_.set_stop_signals(signals);
  }
  bool stop_asked() const override { return signals_.stop_asked() || is_cancelled(); }
  bool end_asked() const override { return signals_.end_asked(); }
  int64_t num_saves_asked() const override;
  int64_t num_received(int signal_number) const override;

 private:
  train::StopRequest& signals_;
  const std::filesystem::path cancel_file_;
  const int64_t saves_before_;
  std::array<int64_t, train::kCountedSignals.size()> received_before_{};
  mutable std::atomic<bool> is_cancelled_{false};
  mutable std::atomic<int64_t> look_again_at_ns_{0};
};

}  // namespace lockstep::daemon
