#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "infer/engine.h"
#include "infer/onnx.pb.h"
#include "infer/sparse/sparse_network.h"

// ONNX files: read, damaged, and computed by every engine.
namespace lockstep::infer {
namespace onnx_file_test {

using ::testing::HasSubstr;
namespace pb = lockstep::onnx::pb;

/// The bytes of a file with one linear layer, [B, 3] -> [B, 2].
std::string linear_file(at::IntArrayRef sizes = {3, 2}) {
  pb::Model model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(13);
  pb::Graph* const graph = model.mutable_graph();
  const auto declare = [](pb::ValueInfo* value, const char* name, int64_t extent) {
    value->set_name(name);
    auto* const type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(1);
    type->mutable_shape()->add_dim()->set_dim_param("batch");
    type->mutable_shape()->add_dim()->set_dim_value(extent);
  };
  declare(graph->add_input(), "inputs", 3);
  declare(graph->add_output(), "logits", 2);
  pb::Tensor* const weight = graph->add_initializer();
  weight->set_name("weight");
  weight->set_data_type(1);
  for (const int64_t size : sizes) weight->add_dims(size);
  for (int i = 0; i < 6; ++i) weight->add_float_data(static_cast<float>(i));
  pb::Node* const node = graph->add_node();
  node->set_op_type("MatMul");
  node->add_input("inputs");
  node->add_input("weight");
  node->add_output("logits");
  return model.SerializeAsString();
}

TEST(OnnxFile, IsReadAndComputedByEveryEngine) {
  const auto graph = std::make_shared<OnnxGraph>(read_onnx(linear_file(), "file", ""));
  EXPECT_EQ(graph->inputs[0].shape, (std::vector<int64_t>{-1, 3}));
  const LoadedNetwork network{.source = "file", .graph = graph};
  for (const char* name : {"optimized", "plain", "sparse"}) {
    const auto engine = make_engine(network, {.engine = name, .tensorrt = {}}, at::kCPU);
    const at::Tensor answer = engine->run({at::tensor({1.0F, 10.0F, 100.0F}).reshape({1, 3})})[0];
    EXPECT_TRUE(answer.equal(at::tensor({420.0F, 531.0F}).reshape({1, 2}))) << name << answer;
  }
}

TEST(OnnxFile, ANetworkWithoutAGraphIsRefusedWithAWayOut) {
  try {
    (void)make_engine({.source = "x"}, {.engine = "sparse", .tensorrt = {}}, at::kCPU);
    FAIL() << "accepted";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    EXPECT_THAT(fault.what(), HasSubstr("--checkpoint"));
  }
}

std::string fault_of(const std::string& bytes) {
  try {
    (void)read_onnx(bytes, "x.onnx", "");
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    return fault.what();
  }
  return "";
}

TEST(OnnxFile, DamageIsAnErrorThatNamesTheFileAndTheTensor) {
  EXPECT_THAT(fault_of("no protobuf"), HasSubstr("x.onnx: is not an ONNX file"));
  EXPECT_THAT(fault_of(""), HasSubstr("x.onnx: is not an ONNX file"));
  EXPECT_THAT(fault_of(linear_file({3, 3})), HasSubstr("'weight' has another number of values"));
  EXPECT_THAT(fault_of(linear_file({3, -2})), HasSubstr("'weight' has a damaged shape"));
  EXPECT_THAT(fault_of(linear_file({int64_t{1} << 62, 4})), HasSubstr("has a damaged shape"));
  pb::Model model;
  model.ParseFromString(linear_file());
  model.mutable_graph()->mutable_node(0)->set_input(1, "nothing");
  EXPECT_THAT(fault_of(model.SerializeAsString()),
              HasSubstr("nothing computes the value 'nothing'"));
  model.ParseFromString(linear_file());
  pb::Tensor* const weight = model.mutable_graph()->mutable_initializer(0);
  weight->clear_float_data();
  weight->set_data_location(1);
  for (const auto& [key, value] : {std::pair{"location", "../secret"}, {"offset", "0"}}) {
    pb::Entry* const entry = weight->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  EXPECT_THAT(fault_of(model.SerializeAsString()), HasSubstr("'../secret', not in one of this"));
}

/// Any bytes give an answer or an Error, and never anything else.
TEST(OnnxFile, FiveThousandDamagedFilesGiveErrors) {
  std::mt19937 random(3);
  const std::string whole = linear_file();
  int num_read = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = whole;
    for (auto left = 1 + random() % 4; left > 0; --left)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    try {
      SparseNetwork network(read_onnx(bytes, "x.onnx", ""));
      (void)network.run({at::ones({2, 3})});
      ++num_read;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(num_read, 100);
}

}  // namespace onnx_file_test
}  // namespace lockstep::infer
