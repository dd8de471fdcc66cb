#include "dist/replica_check.h"

#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/tensor_math.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace replica_check_test {

using ::testing::HasSubstr;

/// A fresh copy on each rank, changed there by `change`; returns the message of the error, empty if
/// there is none.
std::string message_of(int world_size,
                       const std::function<void(int rank, std::vector<NamedTensor>&)>& change) {
  try {
    tests::run_ranks(world_size, [&](Communicator& comm) {
      std::vector<NamedTensor> tensors{{"a.weight", at::arange(24, at::kFloat).view({2, 3, 4})},
                                       {"a.bias", at::zeros({3}, at::kDouble)},
                                       {"b.mask", at::ones({5}, at::kBool)},
                                       {"empty", at::zeros({0}, at::kFloat)},
                                       {"b.steps", at::scalar_tensor(7, at::kLong)}};
      change(comm.rank(), tensors);
      require_equal_replicas(comm, "state", tensors);
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDisagree);
    EXPECT_TRUE(error.on_every_rank());
    return error.what();
  }
  return "";
}

TEST(ReplicaCheck, EqualReplicasPass) {
  for (const int world_size : {1, 2, 4}) EXPECT_EQ(message_of(world_size, [](int, auto&) {}), "");
}

TEST(ReplicaCheck, AnEmptyListPasses) {
  tests::run_ranks(
      2, [](Communicator& comm) { EXPECT_NO_THROW(require_equal_replicas(comm, "state", {})); });
}

TEST(ReplicaCheck, StridesDoNotMatter) {
  EXPECT_EQ(message_of(2,
                       [](int rank, auto& tensors) {
                         at::Tensor& weight = tensors[0].tensor;
                         if (rank == 1)
                           weight = weight.permute({2, 0, 1}).contiguous().permute({1, 2, 0});
                       }),
            "");
}

TEST(ReplicaCheck, NamesRanksTensorPlaceAndValues) {
  EXPECT_EQ(
      message_of(4,
                 [](int rank, auto& tensors) {
                   if (rank == 1) tensors[0].tensor[1][1][2] = 18.5;
                 }),
      "[dist] state of a.weight differs: rank 1 from ranks 0, 2, 3; first at item 18 [1, 1, 2]: "
      "ranks 0, 2, 3: 18; rank 1: 18.5 (1 of 5 tensors differs)");
}

TEST(ReplicaCheck, RanksThatDifferLaterAreNamedToo) {
  EXPECT_EQ(message_of(4,
                       [](int rank, auto& tensors) {
                         if (rank == 2) tensors[2].tensor[1] = false;
                         if (rank == 3) tensors[2].tensor[4] = false;
                         if (rank == 3) tensors[4].tensor.fill_(8);
                       }),
            "[dist] state of b.mask differs: ranks 2, 3 from ranks 0, 1; first at item 1 [1]: "
            "ranks 0, 1, 3: 1; rank 2: 0 (2 of 5 tensors differ)");
}

TEST(ReplicaCheck, ThePlaceIsTheFirstOnAnyRank) {
  EXPECT_THAT(
      message_of(
          3, [](int rank, auto& tensors) { tensors[1].tensor[2 - rank] = rank == 0 ? 0 : 0.1; }),
      HasSubstr("first at item 0 [0]: ranks 0, 1: 0; rank 2: 0.1"));
}

TEST(ReplicaCheck, WhenRankZeroIsTheOddOneOutTheSidesStillStand) {
  EXPECT_THAT(message_of(3,
                         [](int rank, auto& tensors) {
                           if (rank == 0) tensors[4].tensor.fill_(-1);
                         }),
              HasSubstr("ranks 1, 2 from rank 0; first at item 0 []: rank 0: -1; ranks 1, 2: 7"));
}

TEST(ReplicaCheck, ASignedZeroAndOneUnitOfTheLastPlaceDiffer) {
  EXPECT_THAT(
      message_of(2, [](int rank, auto& tensors) { tensors[1].tensor[1] = rank == 0 ? 0.0 : -0.0; }),
      HasSubstr("rank 0: 0; rank 1: -0"));
  EXPECT_THAT(message_of(2,
                         [](int rank, auto& tensors) {
                           tensors[0].tensor[0][0][0] =
                               rank == 0 ? 1.0F : std::nextafter(1.0F, 2.0F);
                         }),
              HasSubstr("rank 0: 1; rank 1: 1.0000001"));
}

TEST(ReplicaCheck, EqualNansPass) {
  EXPECT_EQ(message_of(2, [](int, auto& tensors) { tensors[1].tensor.fill_(std::nan("")); }), "");
}

TEST(ReplicaCheck, OtherShapesNamesAndTypesAreNamed) {
  EXPECT_THAT(message_of(2,
                         [](int rank, auto& tensors) {
                           if (rank == 1) tensors[0].tensor = tensors[0].tensor.view({4, 6});
                         }),
              HasSubstr("state, tensor 0 differs: rank 0: a.weight Float [2, 3, 4]; rank 1: "
                        "a.weight Float [4, 6]"));
  EXPECT_THAT(message_of(2,
                         [](int rank, auto& tensors) {
                           if (rank == 1) tensors[1].name = "c.bias";
                         }),
              HasSubstr("rank 0: a.bias Double [3]; rank 1: c.bias Double [3]"));
}

TEST(TensorDigest, EveryByteCounts) {
  for (const int64_t num_bytes : {1, 7, 8, 9, 31, 32, 33, 64, 100}) {
    const at::Tensor bytes_K = at::zeros({num_bytes}, at::kByte);
    const int64_t digest = tensor_digest(bytes_K);
    for (int64_t i = 0; i < num_bytes; ++i) {
      bytes_K[i] = 1;
      EXPECT_NE(tensor_digest(bytes_K), digest) << "byte " << i << " of " << num_bytes;
      bytes_K[i] = 0;
    }
    EXPECT_EQ(tensor_digest(bytes_K), digest);
  }
}

TEST(TensorDigest, PlaceLengthTypeAndShapeCount) {
  std::set<int64_t> digests;
  for (int64_t i = 0; i < 64; ++i)
    digests.insert(tensor_digest(at::one_hot(at::scalar_tensor(i, at::kLong), 64)));
  for (int64_t n = 0; n < 64; ++n) digests.insert(tensor_digest(at::zeros({n}, at::kByte)));
  digests.insert(tensor_digest(at::zeros({2, 8}, at::kInt)));
  digests.insert(tensor_digest(at::zeros({8, 2}, at::kInt)));
  digests.insert(tensor_digest(at::zeros({16}, at::kInt)));
  digests.insert(tensor_digest(at::zeros({16}, at::kFloat)));
  EXPECT_EQ(digests.size(), 64U + 64U + 4U);
}

TEST(TensorDigest, SwappedBlocksDiffer) {
  const at::Tensor values_E = at::arange(64, at::kFloat);
  EXPECT_NE(tensor_digest(values_E),
            tensor_digest(values_E.roll(8)));  // whole rounds of the four lanes
  EXPECT_NE(tensor_digest(values_E), tensor_digest(values_E.roll(2)));  // one word on
}

}  // namespace replica_check_test
}  // namespace lockstep::dist
