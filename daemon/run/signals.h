#pragma once

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Catches SIGUSR1 (save at the next step and stop), SIGTERM, SIGINT and SIGHUP (end; SIGHUP not
/// where it is ignored, as under nohup), and SIGUSR2, which is only counted. The handlers only
/// count; the step loop asks once a step. A further one of those that end, after 10 seconds, ends
/// the process at once.
/// Make it before anything else starts, so that no signal meets the default action.
class Signals final : public train::StopRequest {
 public:
  Signals();
  ~Signals() override;  // restores the default actions
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  bool stop_asked() const override;
  bool end_asked() const override;
  int64_t num_received(int signal_number) const override;
};

}  // namespace lockstep::daemon
