#include "dist/cpu/tree_exchange.h"

#include <atomic>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/tensor_math.h"
#include "tests/dist/cpu/thread_transport.h"

namespace lockstep::dist::cpu {
namespace tree_exchange_test {

using tests::run_message_ranks;

const CommunicatorOptions kTree{.timeout_s = 60, .direct_ranks = 1};

/// Input of rank r: numbers whose sum depends on the order.
at::Tensor values_of(int rank, int64_t num_items, at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(num_items, at::kDouble) * 1.3 + rank * 0.7;
  if (dtype == at::kLong) return (numbers * 1000).to(dtype);
  return (at::sin(numbers) * at::exp(at::cos(numbers * 3) * 6)).to(dtype);
}

/// Expected result by dist/tensor_math.h.
at::Tensor reduced(int num_ranks, int64_t num_items, at::ScalarType dtype, ReduceOp op) {
  std::vector<at::Tensor> all;
  std::vector<const std::byte*> bytes;
  for (int r = 0; r < num_ranks; ++r) {
    all.push_back(values_of(r, num_items, dtype));
    bytes.push_back(static_cast<const std::byte*>(all.back().const_data_ptr()));
  }
  at::Tensor out = at::empty({num_items}, dtype);
  reduce_in_rank_order(bytes, static_cast<std::byte*>(out.mutable_data_ptr()), num_items, dtype,
                       op);
  return out;
}

class TreeExchanges : public ::testing::TestWithParam<int> {};

TEST_P(TreeExchanges, ReduceWithTheBitsOfTheRankOrder) {
  const int num_ranks = GetParam();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong})
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax})
      for (const int64_t num_items :
           op == ReduceOp::kSum ? std::vector<int64_t>{0, 1, 11, 1000} : std::vector<int64_t>{11}) {
        const at::Tensor expected = reduced(num_ranks, num_items, dtype, op);
        run_message_ranks(num_ranks, kTree, [&](Communicator& comm) {
          const at::Tensor values = values_of(comm.rank(), num_items, dtype);
          comm.all_reduce(values, op)->wait();
          EXPECT_TRUE(values.equal(expected))
              << "rank " << comm.rank() << ", " << c10::toString(dtype) << ", " << num_items;
        });
      }
}

TEST_P(TreeExchanges, ScatterAndGatherPieces) {
  const int num_ranks = GetParam();
  for (const auto dtype : {at::kFloat, at::kHalf})
    for (const int64_t num_items : {0, 1, 37}) {
      const at::Tensor sums = reduced(num_ranks, num_items * num_ranks, dtype, ReduceOp::kSum);
      run_message_ranks(num_ranks, kTree, [&](Communicator& comm) {
        const auto piece_of = [&](const at::Tensor& all) {
          return all.narrow(0, comm.rank() * num_items, num_items);
        };
        const at::Tensor values = values_of(comm.rank(), num_items * num_ranks, dtype);
        const at::Tensor before = values.clone();
        comm.reduce_scatter(piece_of(values), values)->wait();
        EXPECT_TRUE(piece_of(values).equal(piece_of(sums))) << "rank " << comm.rank();
        piece_of(before).copy_(piece_of(sums));
        EXPECT_TRUE(values.equal(before)) << "other pieces keep their values";
        comm.all_gather(values, piece_of(values))->wait();
        EXPECT_TRUE(values.equal(sums)) << "rank " << comm.rank();
      });
    }
}

TEST_P(TreeExchanges, BroadcastFromAnyRank) {
  const int num_ranks = GetParam();
  run_message_ranks(num_ranks, kTree, [&](Communicator& comm) {
    for (const int root : {0, num_ranks / 2, num_ranks - 1}) {
      const at::Tensor values = values_of(comm.rank(), 19, at::kFloat);
      comm.broadcast(values, root);
      EXPECT_TRUE(values.equal(values_of(root, 19, at::kFloat))) << root;
    }
  });
}

TEST_P(TreeExchanges, ABarrierWaitsForAll) {
  const int num_ranks = GetParam();
  std::atomic<int> num_come = 0;
  run_message_ranks(num_ranks, kTree, [&](Communicator& comm) {
    for (int round = 1; round <= 3; ++round) {
      ++num_come;
      comm.barrier();
      EXPECT_GE(num_come, round * num_ranks);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, TreeExchanges,
                         ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 23, 64));

/// More than the scratch memory holds at once.
TEST(TreeExchange, TakesLargeTensorsInChunks) {
  constexpr int64_t kItems = (9 << 20) + 5;
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    run_message_ranks(3, kTree, [&](Communicator& comm) {
      const at::Tensor values = at::full({kItems}, comm.rank() + 1, dtype);
      values[kItems - 1] = 10 * comm.rank();
      comm.all_reduce(values, ReduceOp::kSum)->wait();
      EXPECT_TRUE(values.narrow(0, 0, kItems - 1).eq(6).all().item<bool>());
      EXPECT_EQ(values[kItems - 1].item<double>(), 30);
    });
}

std::string text_of_failure(int num_ranks, double timeout_s, ExitCode code,
                            const std::function<void(Communicator&)>& body) {
  std::mutex mutex;
  std::string text;
  run_message_ranks(num_ranks, {.timeout_s = timeout_s, .direct_ranks = 1},
                    [&](Communicator& comm) {
                      try {
                        body(comm);
                      } catch (const Error& error) {
                        const std::lock_guard lock(mutex);
                        if (error.code() == code && text.empty()) text = error.what();
                      }
                    });
  return text;
}

/// The first who notice are those whom the rank itself would have told.
TEST(TreeExchange, ARankThatHangsIsNamed) {
  EXPECT_THAT(text_of_failure(20, 1.0, ExitCode::kWatchdog,
                              [](Communicator& comm) {
                                if (comm.rank() == 13) return;
                                comm.all_reduce(at::ones({100}), ReduceOp::kSum)->wait();
                              }),
              ::testing::HasSubstr("for rank 13 (process"));
}

/// Notes wait for notes in a barrier, so a missing rank may itself wait. No error names that rank
/// as the hanging one, and the ranks next to the hanging one report first.
TEST(TreeExchange, OfABarrierOnlyTheRankThatHangsIsSaidToHang) {
  std::mutex mutex;
  std::vector<std::string> texts;  // in the order in which ranks gave up
  run_message_ranks(20, {.timeout_s = 1.0, .direct_ranks = 16}, [&](Communicator& comm) {
    if (comm.rank() == 13) return;
    try {
      comm.barrier();
      ADD_FAILURE() << "rank " << comm.rank() << " passed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kWatchdog);
      const std::lock_guard lock(mutex);
      texts.emplace_back(error.what());
    }
  });
  ASSERT_EQ(texts.size(), 19U);
  EXPECT_THAT(texts.front(), ::testing::HasSubstr("for rank 13 (process"));
  for (const std::string& text : texts)
    EXPECT_THAT(text, ::testing::HasSubstr("it hangs or waits for a rank that hangs"));
}

TEST(TreeExchange, ARankThatMakesAnotherCallIsNamed) {
  for (const bool meets : {false, true})
    EXPECT_THAT(
        text_of_failure(
            20, 1.0, ExitCode::kDisagree,
            [meets](Communicator& comm) {
              if (comm.rank() == 13 && meets)
                comm.barrier();
              else
                comm.all_reduce(at::ones({comm.rank() == 13 ? 99 : 100}), ReduceOp::kSum)->wait();
            }),
        ::testing::AllOf(::testing::HasSubstr("ranks make different calls"),
                         ::testing::HasSubstr("rank 13: ")));
}

}  // namespace tree_exchange_test
}  // namespace lockstep::dist::cpu
