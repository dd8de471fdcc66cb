#pragma once

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Counts the signals that control a run. The handlers only count; the methods read the counters.
///
///   SIGUSR1                  save at the next step and stop
///   SIGUSR2                  save at the next step and continue
///   SIGTERM, SIGINT, SIGHUP  end, and save if there is time
///
/// A further SIGTERM, SIGINT or SIGHUP after 10 seconds ends the process at once, and so does any
/// second SIGINT. SIGHUP is not caught if it is ignored, as under nohup.
///
/// set_stop_signals() gives any of them the meaning of SIGUSR1.
///
/// Create it before anything else starts, so that no signal meets the default action. Signals that
/// were blocked until then (hold_stop_signals()) are delivered now.
class Signals final : public train::StopRequest {
 public:
  Signals();
  ~Signals() override;  // ignores the signals from now on: the process is about to end
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void set_stop_signals(const std::vector<int>& signals) override;
  bool stop_asked() const override;
  bool end_asked() const override;
  int64_t num_saves_asked() const override;
  int64_t num_received(int signal_number) const override;
};

}  // namespace lockstep::daemon
