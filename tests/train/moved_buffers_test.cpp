#include "train/step/buffers.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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
    moved.end_step(StepEnd::kUpdated, step(&net, comm.rank()));
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
    moved.end_step(StepEnd::kUpdated, step(&net, comm.rank()));
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
    moved.end_step(StepEnd::kSkipped, num_samples);
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
      moved.end_step(StepEnd::kUpdated, /*num_samples=*/comm.rank() == 0 ? 3 : 1);
      const c10::complex<float> mean = mode == "average" ? c10::complex<float>(5, -5) : first;
      EXPECT_TRUE(net.spectrum().equal(at::full({2}, mean, at::kComplexFloat))) << mode;
      moved.begin_step();
      net.spectrum().zero_();
      moved.end_step(StepEnd::kSkipped, 1);
      EXPECT_TRUE(net.spectrum().equal(at::full({2}, mean, at::kComplexFloat))) << mode;
    });
}

TEST(MovedBuffers, RefuseWhatWouldMoveThemOtherwise) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    for (const bool elastic : {false, true}) {
      Counting net;
      MovedBuffers moved(net, comm, elastic ? "average" : "sync", elastic);
      moved.begin_step();
      moved.end_step(StepEnd::kUpdated, 1);  // nothing has moved
      moved.begin_step();
      EXPECT_THROW(moved.end_step(StepEnd::kUpdated, step(&net, comm.rank())), Error);
    }
  });
}

/// A network with the tensors that a test gives it; forward is the test's.
class Holding final : public model::Model {
 public:
  explicit Holding(std::vector<model::Buffer> saved, std::vector<model::Buffer> unsaved = {})
      : unsaved_(std::move(unsaved)) {
    table_.buffers = std::move(saved);
  }
  at::Tensor forward(const at::Tensor& inputs_BX) override { return inputs_BX; }
  std::vector<model::Buffer> unsaved_buffers() const override { return unsaved_; }
  void put_saved(const at::Tensor& tensor) { table_.buffers[0].tensor = tensor; }
  void put_unsaved(const at::Tensor& tensor) { unsaved_[0].tensor = tensor; }

 private:
  std::vector<model::Buffer> unsaved_;
};

const double kInf = std::numeric_limits<double>::infinity();

TEST(MovedBuffers, ConstantOnesDoNotTravel) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const at::Tensor mask = at::full({1000}, -kInf, at::kFloat);
    Holding net({{"mask", mask, /*moved_by_forward=*/true}});
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    const int64_t bytes_before = comm.bytes_reduced();
    for (int i = 0; i < 5; ++i) {
      moved.begin_step();
      moved.end_step(StepEnd::kUpdated, /*num_samples=*/comm.rank());
    }
    EXPECT_TRUE(at::equal(mask, at::full({1000}, -kInf, at::kFloat)));
    EXPECT_LE(comm.bytes_reduced() - bytes_before, 5 * 8);  // whether it has moved
  });
}

TEST(MovedBuffers, InfinityStaysWhereARankHasNoSample) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const at::Tensor values = at::full({2}, -kInf);
    Holding net({{"least", values, /*moved_by_forward=*/true}});
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    moved.begin_step();
    if (comm.rank() == 0) values[1] = 3;
    moved.end_step(StepEnd::kUpdated, /*num_samples=*/comm.rank() == 0 ? 2 : 0);
    EXPECT_TRUE(at::equal(values, at::tensor({-kInf, 3.0})));
  });
}

TEST(MovedBuffers, ThoseThatNoSaveHoldsAreEqualToo) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const at::Tensor center = at::zeros({2});
    Holding net({}, {{"center", center, /*moved_by_forward=*/true}});
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    moved.begin_step();
    center.add_(comm.rank() == 0 ? 2 : 6);
    moved.end_step(StepEnd::kUpdated, 1);
    EXPECT_TRUE(at::equal(center, at::full({2}, 4.0)));
  });
}

TEST(MovedBuffers, OneOfASaveKeepsItsShapeAndType) {
  for (const bool grows_everywhere : {true, false})
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      const bool grows = grows_everywhere || comm.rank() == 1;
      for (const at::Tensor& grown : {at::zeros({3, 4}), at::zeros({2, 4}, at::kDouble),
                                      at::eye(4).slice(0, 0, 2).to_sparse()}) {
        const at::Tensor queue = at::zeros({2, 4});
        Holding net({{"queue", queue, /*moved_by_forward=*/true}});
        MovedBuffers moved(net, comm, "average", /*elastic=*/false);
        moved.begin_step();
        moved.end_step(StepEnd::kUpdated, 1);
        moved.begin_step();
        if (grows) net.put_saved(grown);
        try {
          moved.end_step(StepEnd::kUpdated, 1);
          FAIL() << grown;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kConfig);
          EXPECT_TRUE(error.on_every_rank());
          EXPECT_THAT(error.what(), testing::HasSubstr("the network's queue is Float [2, 4] when"));
        }
      }
    });
}

TEST(MovedBuffers, OneThatNoSaveHoldsMayGrowAndIsThenARanksOwn) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const at::Tensor center = at::zeros({2});
    Holding net({}, {{"cache", at::zeros({2}), true}, {"center", center, true}});
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    for (int i = 1; i <= 4; ++i) {
      moved.begin_step();
      center.add_(comm.rank() == 0 ? 2 : 6);
      if (i == 2) net.put_unsaved(at::full({3 + comm.rank()}, comm.rank()));
      moved.end_step(i != 3 ? StepEnd::kUpdated : StepEnd::kSkipped, 1);
    }
    EXPECT_TRUE(at::equal(center, at::full({2}, 12.0)));
    EXPECT_TRUE(
        at::equal(net.unsaved_buffers()[0].tensor, at::full({3 + comm.rank()}, comm.rank())));
  });
}

/// Adds like Python's `.data.add_()`, which increments no version counter.
void add_unseen(const at::Tensor& values, float step) {
  for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<float>()[i] += step;
}

TEST(MovedBuffers, WritesThatNoVersionTellsOfAreFoundByTheBytes) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    const at::Tensor codes = at::zeros({2});
    Holding net({{"codes", codes, /*moved_by_forward=*/true}});
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    for (int i = 1; i <= 10; ++i) {
      moved.begin_step();
      add_unseen(codes, comm.rank() == 0 ? 1 : 3);
      moved.end_step(StepEnd::kUpdated, 1);
      EXPECT_TRUE(at::equal(codes, at::full({2}, 2.0F * static_cast<float>(i)))) << i;
    }
    moved.begin_step();
    add_unseen(codes, 5);
    moved.end_step(StepEnd::kSkipped, 1);
    EXPECT_TRUE(at::equal(codes, at::full({2}, 20.0F)));
  });
}

TEST(MovedBuffers, ASkippedStepUndoesMovesOfLaterStepsToo) {
  tests::run_ranks(1, [](dist::Communicator& comm) {
    const at::Tensor steady = at::zeros({2}), late = at::zeros({2});
    Holding net({{"steady", steady, true}, {"late", late, true}});
    MovedBuffers moved(net, comm, "average", /*elastic=*/false);
    for (int i = 1; i <= 8; ++i) {
      moved.begin_step();
      if (i >= 6) late.add_(1);
      moved.end_step(i != 8 ? StepEnd::kUpdated : StepEnd::kSkipped, 1);
    }
    EXPECT_TRUE(at::equal(late, at::full({2}, 2.0)));
    EXPECT_TRUE(at::equal(steady, at::zeros({2})));
  });
}

}  // namespace moved_buffers_test
}  // namespace lockstep::train
