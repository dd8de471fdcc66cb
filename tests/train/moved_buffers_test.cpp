#include "train/step/moved_buffers.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/thread_world.h"

namespace lockstep::train {
namespace moved_buffers_test {

/// A network whose forward adds its inputs to a buffer and counts.
class Counting final : public model::Model {
 public:
  Counting() {
    table_.buffers.push_back({"mean", at::zeros({2}), /*moved_by_forward=*/true});
    table_.buffers.push_back({"count", at::zeros({}, at::kLong), /*moved_by_forward=*/true});
    table_.buffers.push_back({"fixed", at::ones({2})});
  }
  at::Tensor forward(const at::Tensor& inputs_BX) override {
    table_.buffers[0].tensor.add_(inputs_BX.mean(0));
    table_.buffers[1].tensor.add_(1);
    return inputs_BX;
  }
  at::Tensor buffer(size_t index) const { return table_.buffers[index].tensor; }
};

/// Rank r sees 3 samples of value 4 (rank 0) or 1 sample of value 8; the others none.
int64_t step(Counting* net, int rank) {
  const int64_t num_samples = rank == 0 ? 3 : rank == 1 ? 1 : 0;
  if (num_samples > 0) (void)net->forward(at::full({num_samples, 2}, rank == 0 ? 4.0 : 8.0));
  return num_samples;
}

TEST(MovedBuffers, AreTheRanksMeanBySamples) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    Counting net;
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    moved.begin_step();
    moved.end_step(true, step(&net, comm.rank()));
    EXPECT_TRUE(at::equal(net.buffer(0), at::full({2}, (3 * 4 + 8) / 4.0)));
    EXPECT_EQ(net.buffer(1).item<int64_t>(), 1);
    EXPECT_TRUE(at::equal(net.buffer(2), at::ones({2})));
  });
}

TEST(MovedBuffers, AreRankZerosWhereThatIsAskedFor) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Counting net;
    MovedBuffers moved(net, comm, "broadcast", /*elastic=*/false);
    moved.begin_step();
    moved.end_step(true, step(&net, comm.rank()));
    EXPECT_TRUE(at::equal(net.buffer(0), at::full({2}, 4.0)));
  });
}

TEST(MovedBuffers, StayWhereTheyWereInASkippedStep) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Counting net;
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    moved.begin_step();
    const int64_t num_samples = step(&net, comm.rank());
    net.buffer(0).fill_(std::numeric_limits<double>::quiet_NaN());
    moved.end_step(false, num_samples);
    EXPECT_TRUE(at::equal(net.buffer(0), at::zeros({2})));
    EXPECT_EQ(net.buffer(1).item<int64_t>(), 0);
  });
}

/// A network with complex statistics and with none at all of the other kinds.
class Spectral final : public model::Model {
 public:
  Spectral() {
    table_.buffers.push_back(
        {"spectrum", at::zeros({2}, at::kComplexFloat), /*moved_by_forward=*/true});
  }
  at::Tensor forward(const at::Tensor& inputs_BX) override { return inputs_BX; }
  at::Tensor spectrum() const { return table_.buffers[0].tensor; }
};

TEST(MovedBuffers, ComplexOnesAreMeansOfBothParts) {
  const c10::complex<float> first(4, -8), second(8, 4);
  for (const std::string mode : {"average", "broadcast"})
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      Spectral net;
      MovedBuffers moved(net, comm, mode, /*elastic=*/false);
      moved.begin_step();
      net.spectrum().fill_(comm.rank() == 0 ? first : second);
      moved.end_step(true, /*num_samples=*/comm.rank() == 0 ? 3 : 1);
      const c10::complex<float> mean = mode == "average" ? c10::complex<float>(5, -5) : first;
      EXPECT_TRUE(net.spectrum().equal(at::full({2}, mean, at::kComplexFloat))) << mode;
      moved.begin_step();
      net.spectrum().zero_();
      moved.end_step(false, 1);
      EXPECT_TRUE(net.spectrum().equal(at::full({2}, mean, at::kComplexFloat))) << mode;
    });
}

TEST(MovedBuffers, RefuseWhatWouldMoveThemOtherwise) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Counting net;
    EXPECT_THROW(MovedBuffers(net, comm, "sync", /*elastic=*/false), Error);
    EXPECT_THROW(MovedBuffers(net, comm, "average", /*elastic=*/true), Error);
  });
}

}  // namespace moved_buffers_test
}  // namespace lockstep::train
