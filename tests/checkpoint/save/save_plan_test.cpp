#include "checkpoint/save/save_plan.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::checkpoint {
namespace save_plan_test {

using testing::ElementsAre;

std::vector<StoredTensor> pieces_of(const std::vector<at::Tensor>& tensors) {
  StateList state;
  for (const at::Tensor& tensor : tensors)
    state.push_back({"model/" + std::to_string(state.size()), tensor});
  std::vector<StoredTensor> pieces = save_pieces(state, 1, /*sparse=*/false);
  pieces.resize(tensors.size());  // without counter and graph
  return pieces;
}

/// Every element of every piece in the part of exactly one rank, in order.
void expect_all_once(const std::vector<StoredTensor>& pieces, const SavePlan& plan,
                     int world_size) {
  std::vector<int64_t> ends(pieces.size(), 0);
  for (int rank = 0; rank < world_size; ++rank)
    for (const ShardItem& part : plan.parts_of(rank)) {
      EXPECT_EQ(part.range.begin_E, ends[part.piece]) << "piece " << part.piece;
      ends[part.piece] = part.range.end_E;
    }
  for (size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(ends[i], pieces[i].num_elements());
}

TEST(SavePlan, CutsTheBytesIntoEqualRuns) {
  const auto pieces = pieces_of({at::zeros({100, 3}), at::zeros({50}, at::kDouble)});
  const SavePlan plan(pieces, 2, /*min_cut_bytes=*/0);
  // 1,600 bytes: 800 are 66 rows of the first tensor and a bit, which goes to the nearer row
  EXPECT_THAT(plan.parts_of(0), ElementsAre(ShardItem{0, {0, 201}}));
  EXPECT_THAT(plan.parts_of(1), ElementsAre(ShardItem{0, {201, 300}}, ShardItem{1, {0, 50}}));
}

TEST(SavePlan, CutsAtMostOneTensorForEachBorder) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < 40; ++i) tensors.push_back(at::zeros({i, 7}));
  const auto pieces = pieces_of(tensors);
  for (const int world_size : {1, 2, 3, 8, 64}) {
    const SavePlan plan(pieces, world_size, 0);
    expect_all_once(pieces, plan, world_size);
    size_t num_parts = 0;
    for (int rank = 0; rank < world_size; ++rank) num_parts += plan.parts_of(rank).size();
    EXPECT_LE(num_parts, pieces.size() + static_cast<size_t>(world_size) - 1);
  }
}

TEST(SavePlan, LeavesSmallTensorsAndTypesThatTensorFlowDoesNotSliceWhole) {
  const auto small = pieces_of({at::zeros({100, 3})});
  EXPECT_THAT(SavePlan(small, 2).parts_of(0), ElementsAre(ShardItem{0, {0, 300}}));
  EXPECT_TRUE(SavePlan(small, 2).parts_of(1).empty());
  const auto halves = pieces_of({at::zeros({100, 3}, at::kHalf)});
  const SavePlan plan(halves, 3, 0);
  expect_all_once(halves, plan, 3);
  EXPECT_EQ(plan.parts_of(0).size() + plan.parts_of(1).size() + plan.parts_of(2).size(), 1U);
}

TEST(SavePlan, CutsInsideOfLongRows) {
  const auto pieces = pieces_of({at::zeros({2, 3, 1 << 19})});
  const SavePlan plan(pieces, 4, 0);
  expect_all_once(pieces, plan, 4);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_NEAR(static_cast<double>(plan.parts_of(rank).at(0).range.num_elements()),
                6.0 * (1 << 19) / 4, 1024);
}

TEST(SavePlan, GivesTextsAndEmptyTensorsToOneRank) {
  std::string text = "a";
  StateList state{{"model/empty", at::zeros({0, 4})}, {"_lockstep/text", {}, &text}};
  const auto pieces = save_pieces(state, 1, false);
  for (const int world_size : {1, 3}) {
    const SavePlan plan(pieces, world_size, 0);
    std::vector<int> times(pieces.size(), 0);
    for (int rank = 0; rank < world_size; ++rank)
      for (const ShardItem& part : plan.parts_of(rank)) ++times[part.piece];
    EXPECT_THAT(times, testing::Each(1));
  }
}

TEST(SavePlan, DividedPiecesAreWrittenByWhoHoldsThem) {
  StateList state{{"optimizer/m", at::zeros({10, 2})}};
  state[0].held = {{2, 5}, {8, 20}};
  const auto pieces = save_pieces(state, 1, false);
  const SavePlan plan(pieces, 2, 0);
  EXPECT_THAT(plan.parts_of(0), ElementsAre(ShardItem{0, {2, 5}}, ShardItem{0, {8, 20}}));
}

TEST(SavePlan, SomebodyWritesWhatIsDividedIntoNothing) {
  StateList state{{"optimizer/m", at::zeros({0, 2})}};
  state[0].held.emplace();
  const auto pieces = save_pieces(state, 1, false);
  const SavePlan plan(pieces, 2, 0);
  EXPECT_THAT(plan.parts_of(0), testing::Contains(ShardItem{0, {0, 0}}));
  EXPECT_THAT(plan.parts_of(1), testing::Not(testing::Contains(ShardItem{0, {0, 0}})));
}

}  // namespace save_plan_test
}  // namespace lockstep::checkpoint
