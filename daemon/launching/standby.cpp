#include "daemon/launching/standby.h"

#include <array>
#include <exception>

#include <ATen/ops/zeros.h>
#include <poll.h>
#include <unistd.h>

#include "daemon/config/run_sections.h"

namespace lockstep::daemon {
namespace {

/// Longest time until a rank notices that it is told to stop. A line is read at once.
constexpr int kTurn_ms = 100;

/// Ordered by priority: the maximum over the ranks is the decision.
enum Word : int64_t { kNone, kGo, kEnd };

Word read_word() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, kTurn_ms) <= 0) return kNone;
  std::array<char, 64> text{};
  return ::read(STDIN_FILENO, text.data(), text.size()) > 0 ? kGo : kEnd;
}

}  // namespace

void read_ahead(const std::string& config_file, const std::vector<Override>& overrides) {
  begin_job();  // so that stand_by() knows the program's own rows
  try {
    Diagnostics ignored;
    (void)load_run_config(config_file, overrides, &ignored);
  } catch (const std::exception&) {
    // The session reads the file again and reports the fault.
  }
}

bool stand_by(dist::Communicator& control, const train::StopRequest& stop) {
  while (true) {
    const bool is_told_to_stop = stop.stop_asked() || stop.end_asked();
    at::Tensor word_1 = at::zeros({1}, at::kLong);
    word_1[0] = static_cast<int64_t>(is_told_to_stop       ? kEnd
                                     : control.rank() == 0 ? read_word()
                                                           : kNone);
    // All ranks reduce once per turn, so they agree on the same turn.
    control.all_reduce(word_1, dist::ReduceOp::kMax)->wait();
    const auto agreed = word_1[0].item<int64_t>();
    if (agreed == kNone) continue;
    begin_job();  // the run reads everything again, from files that may have changed
    return agreed == kGo;
  }
}

}  // namespace lockstep::daemon
