#include "recal/masks/mask_update.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "base/random.h"
#include "dist/communicator.h"
#include "recal/masks/mask_table.h"
#include "tests/support/thread_world.h"

namespace lockstep::recal {
namespace distributed_mask_update_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MaskKind kind(const std::string& text) { return MaskKind::parse(text).value(); }

at::Tensor random_values(int64_t seed, at::IntArrayRef sizes) {
  const CounterRandom random{seed};
  const at::Tensor values = at::empty(sizes);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.mutable_data_ptr<float>()[i] =
        static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
  return values;
}

ParamTable some_params() {
  return {{"a.weight", random_values(1, {9, 8}), true, true},
          {"b.weight", random_values(2, {3, 4, 3, 3}), true, true},
          {"c.weight", random_values(3, {16, 12}), true, true},
          {"d.weight", random_values(4, {1, 4}), true, true},
          {"e.weight", random_values(5, {7, 20}), true, true}};
}

const std::vector<int64_t> kAll{0, 1, 2, 3, 4};

TEST(MaskDivision, SharesAreBalancedBySize) {
  EXPECT_THAT(share_out(std::vector<int64_t>{5, 9, 1, 4, 5}, 2), ElementsAre(1, 0, 1, 0, 1));
  EXPECT_THAT(share_out(std::vector<int64_t>{5, 5, 5}, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(share_out(std::vector<int64_t>{5, 5, 5}, 1), ElementsAre(0, 0, 0));
  EXPECT_THAT(share_out({}, 3), ElementsAre());
}

TEST(MaskDivision, PaysForManyGroupsOverSeveralRanks) {
  const std::vector<int64_t> large(8, 5'000'000);
  const MaskRule blocks{kind("block4"), false};
  EXPECT_TRUE(division_pays(blocks, large, 2));
  EXPECT_FALSE(division_pays(blocks, large, 1));
  EXPECT_FALSE(division_pays(blocks, std::vector<int64_t>(8, 1000), 4));     // small
  EXPECT_FALSE(division_pays(blocks, std::vector<int64_t>{40'000'000}, 4));  // one share
  EXPECT_FALSE(division_pays({kind("block4"), true}, large, 4));             // one threshold
  EXPECT_FALSE(division_pays({kind("unstructured"), false}, large, 2));
}

class MaskDivisionOnRanks : public ::testing::TestWithParam<int> {};

/// Both ways, at each world size: the bits of one rank that computes alone.
TEST_P(MaskDivisionOnRanks, WhoeverComputesTheMasksAreEqual) {
  for (const std::string kind_text : {"unstructured", "block4", "2:4", "filter", "channel"})
    for (const bool global : {false, true}) {
      const MaskRule rule{kind(kind_text), global};
      dist::SelfCommunicator self;
      MaskTable alone(some_params(), kAll, MaskWork::kAlone);
      tests::run_ranks(GetParam(), [&](dist::Communicator& comm) {
        for (const MaskWork work : {MaskWork::kAlone, MaskWork::kDivided, MaskWork::kBySize}) {
          MaskTable expected(some_params(), kAll, MaskWork::kAlone);
          MaskTable masks(some_params(), kAll, work);
          for (const double sparsity : {0.2, 0.35, 0.5}) {
            const std::vector<int64_t> changed = masks.prune(kAll, sparsity, rule, comm);
            EXPECT_EQ(changed, expected.prune(kAll, sparsity, rule, self));
            masks.require_equal("the new mask", kAll, comm);
            for (const int64_t param : kAll) {
              EXPECT_TRUE(masks.of(param).kept_bits.equal(expected.of(param).kept_bits))
                  << kind_text << " " << param;
              EXPECT_EQ(masks.of(param).num_pruned, expected.of(param).num_pruned);
            }
          }
        }
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MaskDivisionOnRanks, ::testing::Values(1, 2, 4));

/// Each rank's error text.
std::vector<std::string> errors_on_ranks(int world_size,
                                         const std::function<void(dist::Communicator&)>& body) {
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    try {
      body(comm);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDisagree);
      EXPECT_TRUE(error.on_every_rank());
      texts[static_cast<size_t>(comm.rank())] = error.what();
    }
  });
  return texts;
}

TEST(MaskDivision, ARankWithOtherWeightsIsFoundThoughOthersComputeForIt) {
  const std::vector<std::string> texts = errors_on_ranks(4, [](dist::Communicator& comm) {
    const ParamTable params = some_params();
    if (comm.rank() == 2) params[4].tensor[3][1] = 8;
    MaskTable masks(params, kAll, MaskWork::kDivided);
    masks.prune(kAll, 0.5, {}, comm);
  });
  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("the weight to be pruned of e.weight differs: rank 2 from ranks 0, "
                                "1, 3; first at item 61 [3, 1]: "));
}

TEST(MaskDivision, ARankWithAnotherMaskIsFoundBeforeItIsReplaced) {
  const std::vector<std::string> texts = errors_on_ranks(2, [](dist::Communicator& comm) {
    MaskTable masks(some_params(), kAll, MaskWork::kDivided);
    if (comm.rank() == 1) masks.state()[2].tensor[5] = 0;
    masks.recount();
    masks.prune(kAll, 0.5, {}, comm);
  });
  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("the mask in bits of c.weight differs"));
}

TEST(MaskDivision, ComputedAloneDifferentWeightsShowInTheMasks) {
  const std::vector<std::string> texts = errors_on_ranks(2, [](dist::Communicator& comm) {
    const ParamTable params = some_params();
    if (comm.rank() == 1) params[3].tensor[0] = at::tensor({9.0F, 1.0F, 1.0F, 9.0F});
    if (comm.rank() == 0) params[3].tensor[0] = at::tensor({9.0F, 9.0F, 1.0F, 1.0F});
    MaskTable masks(params, kAll, MaskWork::kAlone);
    masks.prune(kAll, 0.5, {}, comm);
    masks.require_equal("the new mask", kAll, comm);
  });
  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("the new mask of d.weight differs: rank 1 from rank 0; first at "
                                "item 1 [0, 1]: rank 0: 1; rank 1: 0 (1 of 5 tensors differs)"));
}

}  // namespace distributed_mask_update_test
}  // namespace lockstep::recal
