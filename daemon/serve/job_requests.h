#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <thread>

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// What one job of a server is asked for: signals that have come since it began, and, where the
/// rank has the job's file `cancel`, that file. Any thread.
class JobRequests final : public train::StopRequest {
 public:
  /// `signals` must outlive it. An empty `cancel_file`: this rank does not look. A thread looks
  /// every 20 ms: whoever asks never waits for the disk.
  JobRequests(train::StopRequest& signals, const std::filesystem::path& cancel_file);
  /// Signals have their usual meaning again, whatever the job's preemption.signals said.
  ~JobRequests() override;
  JobRequests(const JobRequests&) = delete;
  JobRequests& operator=(const JobRequests&) = delete;

  bool is_cancelled() const;

  void set_stop_signals(const std::vector<int>& signals) override {
    signals_.set_stop_signals(signals);
  }
  bool stop_asked() const override { return signals_.stop_asked() || is_cancelled(); }
  bool end_asked() const override { return signals_.end_asked(); }
  int64_t num_saves_asked() const override;
  int64_t num_received(int signal_number) const override;

 private:
  struct Look;

  train::StopRequest& signals_;
  const std::shared_ptr<Look> look_;
  const int64_t saves_before_;
  std::array<int64_t, train::kCountedSignals.size()> received_before_{};
  std::thread thread_;
};

}  // namespace lockstep::daemon
