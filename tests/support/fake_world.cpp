#include "tests/support/fake_world.h"

#include <chrono>
#include <mutex>

#include "base/error.h"
#include "dist/nccl/nccl_communicator.h"
#include "tests/support/thread_world.h"

namespace lockstep::tests {
namespace {

using Clock = std::chrono::steady_clock;

/// Notes how each rank ended: the first that is said of it.
class Ends {
 public:
  Ends(FakeCluster& cluster, int num_ranks, const FakePlan& plan)
      : cluster_(cluster), plan_(plan), was_noted_N_(num_ranks), end_N_(num_ranks) {}

  void note(int rank, FakeEnd end) {
    const std::lock_guard lock(mutex_);
    if (was_noted_N_[rank]) return;
    was_noted_N_[rank] = true;
    end.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    end_N_[rank] = std::move(end);
    for (size_t r = 0; r < end_N_.size(); ++r)
      if (!was_noted_N_[r] && !is_hung(static_cast<int>(r))) return;
    cluster_.release();
  }

  std::vector<FakeEnd> take() { return std::move(end_N_); }

 private:
  bool is_hung(int rank) const {
    return plan_.fault == FakeFault::kHostHang && plan_.victim == rank;
  }

  FakeCluster& cluster_;
  const FakePlan plan_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::vector<bool> was_noted_N_;
  std::vector<FakeEnd> end_N_;
};

FakeEnd end_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Killed&) {
    return {.exit_code = -1, .text = "killed"};
  } catch (const Error& error) {
    return {.exit_code = static_cast<int>(error.code()), .text = error.what()};
  } catch (const std::exception& error) {
    return {.exit_code = static_cast<int>(ExitCode::kBug), .text = error.what()};
  }
  return {};
}

}  // namespace

FakeRun run_on_fake(int num_ranks, const FakePlan& plan, double timeout_s, double grace_s,
                    const FakeRankBody& body) {
  FakeCluster cluster(num_ranks, plan);
  Ends ends(cluster, num_ranks, plan);
  run_ranks(num_ranks, [&](dist::Communicator& control) {
    const int rank = control.rank();
    const dist::nccl::WatchLimits limits{.timeout_s = timeout_s,
                                         .grace_s = grace_s,
                                         .end_process = [&ends, rank](const Error& error) {
                                           ends.note(rank,
                                                     {.exit_code = static_cast<int>(error.code()),
                                                      .text = error.what(),
                                                      .by_watchdog = true});
                                         }};
    ends.note(rank, end_of([&] {
                body(control, dist::nccl::start_communicator(control, cluster.gpu(rank), limits));
              }));
  });
  FakeRun run{.end_N = ends.take(), .breaches = cluster.breaches(), .num_collectives_N = {}};
  for (int rank = 0; rank < num_ranks; ++rank)
    run.num_collectives_N.push_back(cluster.num_collectives(rank));
  return run;
}

}  // namespace lockstep::tests
