#include "infer/saved_model.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "small_networks.h"
#include "support/temporary_folder.h"

namespace lockstep::infer {
namespace io_nodes_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

IoNodes read(const std::string& text) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "io_nodes.json";
  std::ofstream(path) << text;
  return read_io_nodes(path);
}

TEST(IoNodes, AreReadWithShapeAndType) {
  const IoNodes nodes =
      read(R"({"inputs": [{"name": "tokens", "shape": [null, 16], "dtype": "int64"}],
    "outputs": [{"name": "logits", "shape": [null, 10]}]})");
  EXPECT_EQ(nodes.inputs.at(0).name, "tokens");
  EXPECT_THAT(nodes.inputs.at(0).shape, ElementsAre(IoNode::kAny, 16));
  EXPECT_EQ(nodes.inputs.at(0).dtype, at::kLong);
  EXPECT_EQ(nodes.outputs.at(0).dtype, at::kFloat);
}

TEST(IoNodes, WhatIsNoSuchFileIsRefused) {
  for (const char* text :
       {"", "[]", R"({"inputs": []})", R"({"inputs": [], "outputs": []})",
        R"({"inputs": [{"name": "x", "shape": "any"}], "outputs": []})",
        R"({"inputs": [{"name": "x", "shape": [1], "dtype": "f4"}], "outputs": []})"})
    try {
      (void)read(text);
      ADD_FAILURE() << text;
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kBadData);
      EXPECT_THAT(fault.what(), HasSubstr("io_nodes.json"));
    }
}

std::string fault_of(const coord::DataMap& feed) {
  try {
    (void)inputs_in(feed, tests::line_nodes(), "runs/line");
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    return fault.what();
  }
  return "";
}

coord::DataMap map_of(const std::string& key, coord::DataValue value) {
  coord::DataMap map;
  map.put(key, std::move(value));
  return map;
}

TEST(IoNodes, InputsThatDoNotFitNameBothSides) {
  EXPECT_EQ(fault_of(map_of("inputs", at::zeros({0, 3}))), "");
  EXPECT_THAT(
      fault_of(map_of("input", at::zeros({2, 3}))),
      HasSubstr("'inputs' is float32 [any, 3], and the feed has no such key: it has input"));
  EXPECT_THAT(fault_of({}), HasSubstr("it has nothing"));
  EXPECT_THAT(fault_of(map_of("inputs", at::zeros({2, 3}, at::kDouble))),
              HasSubstr("float32 [any, 3], the feed has float64 [2, 3]"));
  EXPECT_THAT(fault_of(map_of("inputs", at::zeros({3}))), HasSubstr("the feed has float32 [3]"));
  EXPECT_THAT(fault_of(map_of("inputs", std::vector<std::string>{"a"})),
              HasSubstr("the feed has texts"));
}

}  // namespace io_nodes_test
}  // namespace lockstep::infer
