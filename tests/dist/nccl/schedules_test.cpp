// Collectives between streams whose work comes late by chance: none reads before it was written,
// none is overwritten before it was read. LOCKSTEP_SOAK=1: 10,000 schedules.
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist/nccl/nccl_communicator.h"
#include "dist/reducer/overlap.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist::nccl {
namespace schedules_test {

using ::testing::IsEmpty;

constexpr int kSteps = 3, kFew = 200, kMany = 10'000;
const WatchLimits kLimits{.timeout_s = 60, .grace_s = 4};

int num_schedules() { return std::getenv("LOCKSTEP_SOAK") != nullptr ? kMany : kFew; }

/// A run of steps as GradientReducer makes them on a GPU: backward writes bucket after bucket, a
/// communication thread sends each behind a mark, the rest is sent behind the caller's stream, and
/// the update reads all sums.
class Schedule {
 public:
  Schedule(tests::FakeCluster& cluster, Communicator& comm, uint64_t seed)
      : cluster_(cluster), comm_(comm), random_(static_cast<uint32_t>(seed + 1)) {
    const size_t num_buckets = 1 + random_() % 4;
    for (size_t i = 0; i < num_buckets; ++i)
      grads_.push_back(at::zeros({static_cast<int64_t>(1 + random_() % 40)}));
    marks_.resize(num_buckets);
    is_half_ = random_() % 4 == 0;
  }

  void run() {
    for (int step = 0; step < kSteps; ++step) make_step(step);
    comm_.settle();
    std::promise<void> done;
    cluster_.enqueue(comm_.rank(), [&] { done.set_value(); });
    done.get_future().wait();
  }

  /// Values other than the sum that updates read, by step and bucket; empty if there are none.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  float value(int rank, int step, size_t bucket) const {
    return static_cast<float>(1 + rank + 10 * step) + 3 * static_cast<float>(bucket);
  }

  void make_step(int step) {
    works_.clear();
    works_.resize(grads_.size());
    CommunicationThread thread([this](size_t bucket) { send(bucket, std::move(marks_[bucket])); });
    thread.begin();
    const size_t num_beside = random_() % (grads_.size() + 1);
    for (size_t bucket = 0; bucket < grads_.size(); ++bucket) {
      cluster_.enqueue(comm_.rank(), [this, step, bucket] {
        grads_[bucket].fill_(value(comm_.rank(), step, bucket));
      });
      if (bucket >= num_beside) continue;
      marks_[bucket] = comm_.mark();
      thread.release(bucket + 1);
    }
    for (size_t bucket = thread.end(); bucket < grads_.size(); ++bucket) send(bucket, nullptr);
    for (const auto& work : works_) work->wait();
    for (size_t bucket = 0; bucket < grads_.size(); ++bucket)
      cluster_.enqueue(comm_.rank(), [this, step, bucket] { read(step, bucket); });
  }

  void send(size_t bucket, std::shared_ptr<StreamMark> mark) {
    comm_.start_after(std::move(mark));
    works_[bucket] = comm_.all_reduce(grads_[bucket], ReduceOp::kSum);
  }

  void read(int step, size_t bucket) {
    float sum = 0;
    for (int rank = 0; rank < comm_.world_size(); ++rank) sum += value(rank, step, bucket);
    if (!grads_[bucket].eq(sum).all().item<bool>())
      faults_.push_back(fmt::format("step {}, bucket {} of {}: {} instead of {}", step, bucket,
                                    grads_.size(), grads_[bucket][0].item<float>(), sum));
  }

  tests::FakeCluster& cluster_;
  Communicator& comm_;
  std::minstd_rand random_;
  bool is_half_ = false;
  std::vector<at::Tensor> grads_;
  std::vector<std::shared_ptr<StreamMark>> marks_;
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<std::string> faults_;
};

TEST(Schedules, NoneReadsBeforeItWasWritten) {
  for (int seed = 0; seed < num_schedules(); ++seed) {
    const int num_ranks = 2 + seed % 2;
    tests::FakeCluster cluster(num_ranks, {.has_async_callers = true,
                                           .most_delay_us = seed % 5 == 0 ? 2000 : 200,
                                           .seed = static_cast<uint64_t>(seed)});
    tests::run_ranks(num_ranks, [&](Communicator& control) {
      const auto comm = start_communicator(control, cluster.gpu(control.rank()), kLimits);
      Schedule schedule(cluster, *comm, static_cast<uint64_t>(seed));
      schedule.run();
      EXPECT_THAT(schedule.faults(), IsEmpty()) << "schedule " << seed;
    });
    EXPECT_THAT(cluster.breaches(), IsEmpty()) << "schedule " << seed;
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace schedules_test
}  // namespace lockstep::dist::nccl
