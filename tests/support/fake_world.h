#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/nccl/watched_comm.h"
#include "tests/support/fake_gpu.h"

namespace lockstep::tests {

/// Result of one rank.
struct FakeEnd {
  int exit_code = 0;  ///< 0: all done; -1: killed
  std::string text;
  bool by_watchdog = false;  ///< the process would have been ended from outside the rank's thread
  double seconds = 0;        ///< since the start
};

struct FakeRun {
  std::vector<FakeEnd> end_N;
  std::vector<std::string> breaches;
  std::vector<int64_t> num_collectives_N;
};

/// Body of a rank: control (threads), and the communicator over the fake devices.
using FakeRankBody =
    std::function<void(dist::Communicator& control, std::unique_ptr<dist::Communicator> gradients)>;

/// Runs `body` on num_ranks threads over a FakeCluster and returns when all have ended. What hangs
/// by plan is released when the other ranks have ended.
FakeRun run_on_fake(int num_ranks, const FakePlan& plan, double timeout_s, double grace_s,
                    const FakeRankBody& body);

}  // namespace lockstep::tests
