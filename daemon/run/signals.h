#pragma once

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Catches the signals that a run counts. The handlers only count; whoever asks here reads.
///
///   SIGUSR1                  save at the next step and stop
///   SIGUSR2                  save at the next step and go on
///   SIGTERM, SIGINT, SIGHUP  end, saving where there is time; SIGHUP not where it is ignored, as
///                            under nohup. A further one after 10 seconds ends the process at once,
///                            and so does any second SIGINT.
///
/// set_stop_signals() gives any of them the meaning of SIGUSR1.
/// Make it before anything else starts, so that no signal meets the default action. Signals that
/// were blocked until then (hold_stop_signals()) come now.
class Signals final : public train::StopRequest {
 public:
  Signals();
  ~Signals() override;  // ignores them from now on: the process is about to end
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void set_stop_signals(const std::vector<int>& signals) override;
  bool stop_asked() const override;
  bool end_asked() const override;
  int64_t num_saves_asked() const override;
  int64_t num_received(int signal_number) const override;
};

}  // namespace lockstep::daemon
