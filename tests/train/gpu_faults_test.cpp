// The training step over the fake device: each fault at each collective of two steps of a plain, a
// pruned and a sharded run. Every rank must end within the deadline + 5 s, with the documented
// code.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "support/fake_world.h"
#include "support/thread_world.h"
#include "train/small_run.h"

namespace lockstep::train {
namespace gpu_faults_test {

using ::testing::IsEmpty;
using tests::FakeEnd;
using tests::FakeFault;
using tests::FakePlan;
using tests::FakeRun;

constexpr int kRanks = 3, kSteps = 2;
/// Waits that are to end by themselves, and those that are to end by the deadline.
constexpr double kLong = 60, kShort = 0.4;
constexpr double kGrace = 2;
/// Seconds that a rank may take beyond the deadline.
constexpr double kSlack = 5;

struct Setting {
  const char* name;
  tests::SmallRunOptions options;
};

std::vector<Setting> settings() {
  std::vector<Setting> all{{"plain", {}},
                           {"during backward", {}},
                           {"pruned", {}},
                           {"sharded", {}},
                           {"sharded, pruned", {}}};
  for (Setting& setting : all) {
    const std::string_view name = setting.name;
    const bool is_pruned = name.ends_with("pruned");
    setting.options.sync = {.bucket_bytes = 64,
                            .overlap = name == "during backward" ? "true" : "false",
                            .sparse_allreduce = is_pruned ? "always" : "never",
                            .comm_dtype = name == "pruned" ? "bf16" : "fp32",
                            .shard_optimizer = name.starts_with("sharded")};
    setting.options.optimizer.type = "momentum";
    if (name == "sharded") setting.options.optimizer.clip.norm = 0.5;
    if (is_pruned)
      setting.options.recipe =
          "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}\n"
          "  - !GMPruningModifier {params: ['layers.0', 'layers.1'], init_sparsity: 0.5, "
          "final_sparsity: 0.8, start_epoch: 0, end_epoch: 2, update_frequency: 0.3}\n";
  }
  return all;
}

/// Two steps, and the state as a save would see it.
std::string train(tests::SmallRun& run) {
  for (int step = 0; step < kSteps; ++step) run.step();
  StateList state = run.state();
  run.reducer.settle();
  run.require_equal_ranks();
  return tests::bits_of(state);
}

/// The same on CPUs: the fake devices add in the same order.
std::string bits_on_cpus(const tests::SmallRunOptions& options) {
  std::string bits;
  tests::run_ranks(kRanks, [&](dist::Communicator& comm) {
    tests::SmallRun run(comm, options);
    const std::string own = train(run);
    if (comm.rank() == 0) bits = own;
  });
  return bits;
}

FakeRun train_on_fake(const tests::SmallRunOptions& options, const FakePlan& plan, double timeout_s,
                      std::string* bits = nullptr) {
  return tests::run_on_fake(kRanks, plan, timeout_s, kGrace,
                            [&](dist::Communicator& control, auto gradients) {
                              tests::SmallRun run(control, options, std::move(gradients));
                              const std::string own = train(run);
                              if (bits != nullptr && control.rank() == 0) *bits = own;
                            });
}

/// Runs the cases side by side: they wait most of the time.
void run_beside(const std::vector<std::function<void()>>& cases) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i)
    threads.emplace_back([&] {
      for (size_t c = next++; c < cases.size(); c = next++) cases[c]();
    });
  for (std::thread& thread : threads) thread.join();
}

/// Defect in how a run ended; empty if there is none.
std::string defect_of(const FakeRun& run, const FakePlan& plan, double timeout_s) {
  const bool must_hang = timeout_s == kShort;
  bool any_watchdog = false;
  for (int rank = 0; rank < kRanks; ++rank) {
    const FakeEnd& end = run.end_N[rank];
    const bool is_gone = plan.fault == FakeFault::kKill || plan.fault == FakeFault::kKillUnseen ||
                         plan.fault == FakeFault::kHostHang;
    const std::string told = " rank " + std::to_string(rank) + ": " +
                             std::to_string(end.exit_code) + " after " +
                             std::to_string(end.seconds) + " s: " + end.text;
    if (rank == plan.victim && is_gone) {
      if (end.exit_code != -1) return "the victim lives;" + told;
      continue;
    }
    any_watchdog = any_watchdog || end.exit_code == static_cast<int>(ExitCode::kWatchdog);
    if (end.exit_code != 69 && !(must_hang && end.exit_code == 79)) return "wrong code;" + told;
    if (end.seconds > (must_hang ? timeout_s : 0) + kSlack) return "too late;" + told;
    if (end.by_watchdog) return "it did not end by itself;" + told;
  }
  if (must_hang && !any_watchdog) return "no rank ends with 79";
  return run.breaches.empty() ? "" : run.breaches.front();
}

/// Starts the victim's reduction number `at` only after the next call, if no rank waits for it
/// before: this rank has another order of calls.
class SwappingCommunicator final : public dist::Communicator {
 public:
  SwappingCommunicator(std::unique_ptr<dist::Communicator> comm, int64_t at)
      : comm_(std::move(comm)), at_(at) {}

  int rank() const override { return comm_->rank(); }
  int world_size() const override { return comm_->world_size(); }
  at::Device device() const override { return comm_->device(); }
  bool is_asynchronous() const override { return comm_->is_asynchronous(); }
  int64_t bytes_reduced() const override { return comm_->bytes_reduced(); }

  std::unique_ptr<dist::Work> all_reduce(at::Tensor values_K, dist::ReduceOp op) override {
    if (num_reductions_++ == at_) {
      held_ = [this, values_K, op] { held_work_ = comm_->all_reduce(values_K, op); };
      return std::make_unique<HeldWork>(*this);
    }
    auto work = comm_->all_reduce(values_K, op);
    make_held_call();
    return work;
  }
  std::unique_ptr<dist::Work> reduce_scatter(at::Tensor out_K, at::Tensor values_NK) override {
    auto work = comm_->reduce_scatter(out_K, values_NK);
    make_held_call();
    return work;
  }
  std::unique_ptr<dist::Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override {
    return comm_->all_gather(out_NK, values_K);
  }
  void broadcast(at::Tensor values_K, int root) override { comm_->broadcast(values_K, root); }
  void barrier() override { comm_->barrier(); }
  void settle() override { comm_->settle(); }
  std::unique_ptr<dist::Communicator> split(int color, int key) override {
    return comm_->split(color, key);
  }

 private:
  struct HeldWork final : dist::Work {
    explicit HeldWork(SwappingCommunicator& owner) : owner_(owner) {}
    void wait() override { owner_.make_held_call(), owner_.held_work_->wait(); }
    void wait_on_host() override { owner_.make_held_call(), owner_.held_work_->wait_on_host(); }
    SwappingCommunicator& owner_;
  };

  void make_held_call() {
    if (const auto held = std::exchange(held_, nullptr)) held();
  }

  const std::unique_ptr<dist::Communicator> comm_;
  const int64_t at_;
  int64_t num_reductions_ = 0;
  std::function<void()> held_;
  std::unique_ptr<dist::Work> held_work_;
};

/// Each reduction of rank 1 in turn is made after the one that follows it. `checked`: calls are
/// compared before they are made. Returns how many runs found it.
int64_t expect_swaps_are_found(const tests::SmallRunOptions& options, bool checked) {
  const std::string expected = bits_on_cpus(options);
  const int64_t num_collectives = train_on_fake(options, {}, kLong).num_collectives_N[0];
  std::vector<std::string> defect_K(num_collectives);
  std::atomic<int64_t> num_found = 0;
  std::vector<std::function<void()>> jobs;
  for (int64_t k = 0; k < num_collectives; ++k)
    jobs.push_back([&, k] {
      std::mutex mutex;
      std::string bits;
      const FakeRun run = tests::run_on_fake(
          kRanks, {}, checked ? kLong : kShort, kGrace,
          [&](dist::Communicator& control, std::unique_ptr<dist::Communicator> gradients) {
            if (checked)
              gradients = std::make_unique<dist::CheckedCommunicator>(
                  std::move(gradients), control.split(0, control.rank()));
            if (control.rank() == 1)
              gradients = std::make_unique<SwappingCommunicator>(std::move(gradients), k);
            tests::SmallRun small(control, options, std::move(gradients));
            const std::string own = train(small);
            const std::lock_guard lock(mutex);
            bits = own;
          });
      bool is_found = false;
      for (const FakeEnd& end : run.end_N) {
        const bool is_documented =
            end.exit_code == 76 || (!checked && (end.exit_code == 79 || end.exit_code == 69));
        if (end.exit_code != 0 && !is_documented) defect_K[k] = end.text;
        if (end.seconds > kShort + kSlack) defect_K[k] = "too late: " + end.text;
        is_found = is_found || end.exit_code != 0;
      }
      if (!is_found && bits != expected) defect_K[k] = "nobody noticed, and the bits are others";
      num_found += is_found;
    });
  run_beside(jobs);
  for (const std::string& defect : defect_K) EXPECT_THAT(defect, IsEmpty());
  return num_found;
}

void expect_all_end(FakeFault fault, double timeout_s) {
  struct Case {
    std::string name;
    FakePlan plan;
    const tests::SmallRunOptions* options;
    std::string defect;
  };
  const std::vector<Setting> all = settings();
  std::vector<Case> cases;
  for (const Setting& setting : all) {
    const FakeRun whole = train_on_fake(setting.options, {}, kLong);
    for (const FakeEnd& end : whole.end_N) ASSERT_EQ(end.exit_code, 0) << end.text;
    const int64_t num_collectives = whole.num_collectives_N[0];
    ASSERT_GE(num_collectives, 2 * kSteps);
    for (int64_t k = 0; k < num_collectives; ++k)
      cases.push_back({std::string(setting.name) + ", collective " + std::to_string(k),
                       {.fault = fault, .victim = static_cast<int>(k % kRanks), .at_collective = k},
                       &setting.options,
                       ""});
  }
  std::vector<std::function<void()>> jobs;
  for (Case& one : cases)
    jobs.push_back([&one, timeout_s] {
      one.defect = defect_of(train_on_fake(*one.options, one.plan, timeout_s), one.plan, timeout_s);
    });
  run_beside(jobs);
  for (const Case& one : cases) EXPECT_THAT(one.defect, IsEmpty()) << one.name;
}

TEST(GpuFaults, WithoutAFaultTheBitsAreThoseOfCpus) {
  for (const Setting& setting : settings()) {
    std::string bits;
    const FakeRun run = train_on_fake(setting.options, {}, kLong, &bits);
    for (const FakeEnd& end : run.end_N) EXPECT_EQ(end.exit_code, 0) << end.text;
    EXPECT_THAT(run.breaches, IsEmpty()) << setting.name;
    EXPECT_FALSE(bits.empty());
    EXPECT_EQ(bits, bits_on_cpus(setting.options)) << setting.name;
  }
}

TEST(GpuFaults, SlowDevicesThatEndInAnyOrderDoNotMatter) {
  for (const Setting& setting : settings()) {
    std::string bits;
    const FakeRun run = train_on_fake(setting.options, {.fault = FakeFault::kLate}, kLong, &bits);
    for (const FakeEnd& end : run.end_N) EXPECT_EQ(end.exit_code, 0) << end.text;
    EXPECT_THAT(run.breaches, IsEmpty()) << setting.name;
    EXPECT_EQ(bits, bits_on_cpus(setting.options)) << setting.name;
  }
}

TEST(GpuFaults, ARankThatSpeaksInAnotherOrder) {
  for (const Setting& setting : settings())
    if (!setting.options.sync.shard_optimizer) {
      EXPECT_GT(expect_swaps_are_found(setting.options, /*checked=*/false), 0) << setting.name;
      EXPECT_GT(expect_swaps_are_found(setting.options, /*checked=*/true), 0) << setting.name;
    }
}

TEST(GpuFaults, ADeviceThatHangs) { expect_all_end(FakeFault::kHang, kShort); }
TEST(GpuFaults, AHostThatHangs) { expect_all_end(FakeFault::kHostHang, kShort); }
TEST(GpuFaults, ARankThatIsKilledUnseen) { expect_all_end(FakeFault::kKillUnseen, kShort); }
TEST(GpuFaults, ACallOfNcclThatHangs) { expect_all_end(FakeFault::kCallNeverEnds, kShort); }
TEST(GpuFaults, ARankThatIsKilled) { expect_all_end(FakeFault::kKill, kLong); }
TEST(GpuFaults, AnAsynchronousError) { expect_all_end(FakeFault::kAsyncError, kLong); }
TEST(GpuFaults, ADeviceThatFails) { expect_all_end(FakeFault::kCudaError, kLong); }
TEST(GpuFaults, ACallOfNcclThatIsRefused) { expect_all_end(FakeFault::kRefusedCall, kLong); }

}  // namespace gpu_faults_test
}  // namespace lockstep::train
