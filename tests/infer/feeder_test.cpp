#include "infer/data_feeder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/dataset.h"
#include "small_networks.h"

namespace lockstep::infer {
namespace feeder_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::tensor_in;

std::unique_ptr<DatasetFeeder> points(int64_t num_samples, int64_t batch_size, float first = 0) {
  const at::Tensor inputs = at::arange(num_samples, at::kFloat).reshape({num_samples, 1}) + first;
  return std::make_unique<DatasetFeeder>(
      std::make_unique<data::MemoryDataset>(inputs, inputs * 2, /*num_classes=*/1,
                                            data::TargetKind::kValues),
      batch_size);
}

std::vector<int64_t> sizes_of(DataFeeder* feeder) {
  std::vector<int64_t> sizes;
  while (const auto feed = feeder->next()) sizes.push_back(tensor_in(*feed, "inputs").size(0));
  return sizes;
}

TEST(InferRows, N82_a_data_feeder_reads_a_data_set_once_in_its_order) {
  const auto feeder = points(5, 2);
  EXPECT_EQ(feeder->num_iterations(), 3);
  std::vector<at::Tensor> inputs;
  while (const auto feed = feeder->next()) {
    inputs.push_back(tensor_in(*feed, "inputs"));
    EXPECT_TRUE(at::equal(tensor_in(*feed, "targets"), inputs.back() * 2));
  }
  EXPECT_EQ(inputs.size(), 3U);
  EXPECT_TRUE(at::equal(at::cat(inputs), at::arange(5, at::kFloat).reshape({5, 1})));
  EXPECT_THAT(sizes_of(points(4, 4).get()), ElementsAre(4));
  EXPECT_THAT(sizes_of(points(1, 256).get()), ElementsAre(1));
}

TEST(ListFeeder, GoesOnUntilTheLastOfThemHasEnded) {
  std::vector<std::unique_ptr<DataFeeder>> feeders;
  feeders.push_back(points(5, 2, 0));
  feeders.push_back(points(2, 2, 100));
  ListFeeder list(std::move(feeders));
  EXPECT_EQ(list.num_iterations(), 3);
  EXPECT_EQ(list.next_list()->size(), 2U);
  EXPECT_EQ(list.next_list()->size(), 1U);
  EXPECT_EQ(tensor_in(*list.next(), "inputs").item<float>(), 4);
  EXPECT_FALSE(list.next_list());
}

TEST(ListFeeder, OfNoneHasNothing) {
  ListFeeder list({});
  EXPECT_EQ(list.num_iterations(), 0);
  EXPECT_FALSE(list.next_list());
}

TEST(Join, PutsTensorsTextsAndMapsOneBehindTheOther) {
  coord::DataMap inner, first, second;
  inner.put("x", at::ones({1}));
  for (coord::DataMap* map : {&first, &second}) {
    map->put("names", std::vector<std::string>{map == &first ? "a" : "b"});
    map->put("inner", std::make_shared<const coord::DataMap>(inner));
    map->put("values", map == &first ? at::zeros({2, 3}) : at::ones({1, 3}));
  }
  const coord::DataMap all = joined({first, second});
  EXPECT_THAT(std::get<std::vector<std::string>>(*all.find("names")), ElementsAre("a", "b"));
  EXPECT_EQ(tensor_in(all, "values").sum().item<float>(), 3);
  EXPECT_EQ(tensor_in(*std::get<2>(*all.find("inner")), "x").size(0), 2);
}

std::string fault_of(const coord::DataMap& first, const coord::DataMap& second) {
  try {
    (void)joined({first, second});
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    return fault.what();
  }
  return "";
}

TEST(Join, WhatDoesNotFitNamesTheKeyAndBothSides) {
  coord::DataMap wide, narrow, texts, empty;
  wide.put("values", at::zeros({2, 3}));
  narrow.put("values", at::zeros({2, 2}));
  texts.put("values", std::vector<std::string>{"a"});
  EXPECT_THAT(fault_of(wide, narrow), HasSubstr("'values'"));
  EXPECT_THAT(fault_of(wide, narrow), HasSubstr("one is Float [2, 3], number 2 is Float [2, 2]"));
  EXPECT_THAT(fault_of(wide, texts), HasSubstr("one is Float [2, 3], number 2 is strings"));
  EXPECT_THAT(fault_of(wide, empty), HasSubstr("one is Float [2, 3], number 2 is missing"));
  EXPECT_THAT(fault_of(empty, wide), HasSubstr("one is Float [2, 3], number 1 is missing"));
}

}  // namespace feeder_test
}  // namespace lockstep::infer
