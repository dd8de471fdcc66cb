#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <thread>

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Stop requests to one job of a server. These are the signals that came after it began and, on the
/// rank that has the job's file `cancel`, that file. Any thread.
class JobRequests final : public train::StopRequest {
 public:
  /// An empty `cancel_file`: this rank does not look for the file. A separate thread looks every 20
  /// ms, so callers never wait for the disk. `signals` must outlive the object.
  JobRequests(train::StopRequest& signals, const std::filesystem::path& cancel_file);
  /// Restores the usual meaning of signals, which the job's preemption.signals may have changed.
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
