#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "infer/engine.h"
#include "infer/sparse/fusion.h"
#include "infer/sparse/onnx_operators.h"
#include "infer/sparse/sparse_network.h"

// ONNX graphs, fused and computed with kept weights, against their operators one by one.
namespace lockstep::infer {
namespace sparse_network_test {

using ::testing::HasSubstr;

void expect_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  if (got.numel() == 0) return;
  EXPECT_LE((got - expected).abs().max().item<double>(), 1e-4) << what;
}

OnnxNode node_of(const std::string& op, std::vector<std::string> inputs, const std::string& output,
                 std::map<std::string, OnnxNode::Attribute> attributes = {}) {
  return {.op = op,
          .name = output,
          .inputs = std::move(inputs),
          .outputs = {output},
          .attributes = std::move(attributes),
          .operator_set = 13};
}

/// A residual block between a first convolution and a classifier, with sparse weights.
OnnxGraph residual_graph() {
  at::manual_seed(1);
  const auto sparse = [](at::IntArrayRef sizes) {
    return at::randn(sizes) * (at::rand(sizes) < 0.1).to(at::kFloat);
  };
  const std::vector<int64_t> ones{1, 1, 1, 1};
  OnnxGraph graph{.inputs = {{.name = "inputs", .shape = {-1, 3, 12, 12}}},
                  .outputs = {{.name = "logits", .shape = {-1, 5}}}};
  graph.constants = {{"w1", sparse({16, 3, 3, 3})},    {"b1", at::randn({16})},
                     {"w2", sparse({16, 16, 3, 3})},   {"gain", at::rand({16}) + 0.5},
                     {"shift", at::randn({16})},       {"mean", at::randn({16})},
                     {"var", at::rand({16}) + 0.5},    {"w3", sparse({16, 16, 1, 1})},
                     {"scale", at::randn({16, 1, 1})}, {"w4", at::randn({16, 5})},
                     {"b4", at::randn({5})},           {"six", at::scalar_tensor(6.0F)},
                     {"zero", at::scalar_tensor(0.0F)}};
  graph.nodes = {node_of("Conv", {"inputs", "w1", "b1"}, "a", {{"pads", ones}}),
                 node_of("Relu", {"a"}, "b"),
                 node_of("Conv", {"b", "w2"}, "c", {{"pads", ones}}),
                 node_of("BatchNormalization", {"c", "gain", "shift", "mean", "var"}, "d"),
                 node_of("Clip", {"d", "zero", "six"}, "e"),
                 node_of("Conv", {"e", "w3"}, "f"),
                 node_of("Mul", {"f", "scale"}, "g"),
                 node_of("Identity", {"b"}, "same"),
                 node_of("Add", {"same", "g"}, "h"),
                 node_of("Relu", {"h"}, "i"),
                 node_of("GlobalAveragePool", {"i"}, "j"),
                 node_of("Flatten", {"j"}, "k"),
                 node_of("MatMul", {"k", "w4"}, "l"),
                 node_of("Add", {"l", "b4"}, "logits")};
  return graph;
}

/// Operator after operator.
at::Tensor unfused(const OnnxGraph& graph, const at::Tensor& inputs) {
  std::map<std::string, at::Tensor> values = graph.constants;
  values[graph.inputs[0].name] = inputs;
  for (const OnnxNode& node : graph.nodes) {
    std::vector<at::Tensor> given;
    for (const std::string& name : node.inputs) given.push_back(values.at(name));
    values[node.outputs[0]] = run_onnx(node, given)[0];
  }
  return values.at(graph.outputs[0].name);
}

TEST(SparseNetwork, FusedLayersGiveTheOperatorsNumbers) {
  const FusedGraph graph = fused(residual_graph());
  ASSERT_EQ(graph.steps.size(), 6U);  // four layers, the pooling, Flatten
  EXPECT_EQ(graph.steps[2].node.inputs, (std::vector<std::string>{"e", "b"}));
  SparseNetwork network(residual_graph());
  for (const int64_t num_samples : {1, 3, 20}) {
    const at::Tensor inputs = at::randn({num_samples, 3, 12, 12});
    const at::Tensor expected = unfused(residual_graph(), inputs);
    expect_close(network.run({inputs}).at(0), expected, "chosen");
    expect_close(network.run_dense({inputs}).at(0), expected, "dense");
  }
  EXPECT_THAT(network.explanation(), HasSubstr("16x16x3x3"));
}

/// Layers that each could be computed with the next one.
TEST(SparseNetwork, ChainsOfLayersGiveTheOperatorsNumbers) {
  at::manual_seed(5);
  for (const int64_t num_layers : {2, 3, 4, 5}) {
    OnnxGraph graph{.inputs = {{.name = "v0", .shape = {-1, 32, 14, 14}}}};
    for (int64_t i = 0; i < num_layers; ++i) {
      const int64_t kernel = i == 0 ? 3 : 1, pad = kernel / 2;
      const std::string in = "v" + std::to_string(i), out = "v" + std::to_string(i + 1);
      graph.constants["w" + in] =
          at::randn({32, 32, kernel, kernel}) * (at::rand({32, 32, kernel, kernel}) < 0.05);
      graph.nodes.push_back(
          node_of("Conv", {in, "w" + in}, "c" + in, {{"pads", std::vector<int64_t>(4, pad)}}));
      graph.nodes.push_back(node_of("Relu", {"c" + in}, out));
    }
    graph.outputs = {{.name = "v" + std::to_string(num_layers)}};
    SparseNetwork network(graph);
    const at::Tensor inputs = at::randn({1, 32, 14, 14});
    for (int i = 0; i < 3; ++i)
      expect_close(network.run({inputs}).at(0), unfused(graph, inputs), "chain");
    EXPECT_THAT(network.explanation(), HasSubstr(": sparse\n"));
  }
}

/// A sum over values that are larger than the layer's outputs, as after a pooling.
TEST(SparseNetwork, ALayerMayAddLargerValues) {
  at::manual_seed(6);
  OnnxGraph graph{.inputs = {{.name = "inputs", .shape = {-1, 8, 9, 9}}},
                  .outputs = {{.name = "logits"}}};
  graph.constants = {{"w1", at::randn({8, 8, 3, 3}) * (at::rand({8, 8, 3, 3}) < 0.1)},
                     {"w2", at::randn({8, 8, 1, 1}) * (at::rand({8, 8, 1, 1}) < 0.1)}};
  graph.nodes = {node_of("GlobalAveragePool", {"inputs"}, "a"),
                 node_of("Conv", {"a", "w1"}, "b", {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}),
                 node_of("Conv", {"b", "w2"}, "c"), node_of("Add", {"c", "inputs"}, "d"),
                 node_of("Relu", {"d"}, "logits")};
  SparseNetwork network(graph);
  const at::Tensor inputs = at::randn({2, 8, 9, 9});
  for (int i = 0; i < 2; ++i)
    expect_close(network.run({inputs}).at(0), unfused(graph, inputs), "chosen");
  expect_close(network.run_dense({inputs}).at(0), unfused(graph, inputs), "dense");
}

TEST(SparseNetwork, ALayerUsedTwiceKeepsItsOutputs) {
  OnnxGraph graph = residual_graph();
  graph.outputs.push_back({.name = "c"});
  EXPECT_EQ(fused(graph).steps.size(), 8U);  // the batch normalisation and its Clip stay
}

/// A quantized residual block between a first convolution and a classifier. Inputs of layers are
/// rounded, as our exports do, or the outputs of all operators, as onnxruntime does.
class QuantizedGraph {
 public:
  explicit QuantizedGraph(bool rounds_outputs) : rounds_outputs_(rounds_outputs) {
    at::manual_seed(3);
    graph_.inputs = {{.name = "inputs", .shape = {-1, 3, 12, 12}}};
    graph_.outputs = {{.name = "logits", .shape = {-1, 5}}};
    graph_.constants = {{"gain", at::rand({14}) + 0.5}, {"shift", at::randn({14})},
                        {"mean", at::randn({14})},      {"var", at::rand({14}) + 0.5},
                        {"b1", at::randn({14})},        {"b4", at::randn({5})}};
    const std::vector<int64_t> ones{1, 1, 1, 1}, two{2, 2};
    const std::string image = round("inputs");
    std::string a = add("Conv", {image, weight("w1", {14, 3, 3, 3}), "b1"}, {{"pads", ones}});
    a = add("BatchNormalization", {a, "gain", "shift", "mean", "var"});
    a = output(add("Relu", {a}));
    std::string b = add("Conv", {input(a), weight("w2", {14, 14, 3, 3})}, {{"pads", ones}});
    b = output(add("Relu", {b}));
    const std::string c = output(add("Conv", {input(b), weight("w3", {14, 14, 1, 1})}));
    const std::string d = output(add("Relu", {add("Add", {c, a})}));
    std::string e = output(add("MaxPool", {d}, {{"kernel_shape", two}, {"strides", two}}));
    e = output(add("GlobalAveragePool", {input(e)}));
    e = add("Flatten", {e});
    graph_.nodes.push_back(node_of("Gemm", {round(e), weight("w4", {5, 14}), "b4"}, "logits",
                                   {{"transB", int64_t{1}}}));
  }

  OnnxGraph take() { return std::move(graph_); }

 private:
  std::string add(const std::string& op, std::vector<std::string> inputs,
                  std::map<std::string, OnnxNode::Attribute> attributes = {}) {
    const std::string name = "v" + std::to_string(graph_.nodes.size());
    graph_.nodes.push_back(node_of(op, std::move(inputs), name, std::move(attributes)));
    return name;
  }
  /// The value after a rounding to bytes and back.
  std::string round(const std::string& value) {
    const std::string scale = value + ".scale", zero = value + ".zero";
    graph_.constants[scale] = at::scalar_tensor(0.03F);
    graph_.constants[zero] =
        rounds_outputs_ ? at::full({}, 128, at::kByte) : at::full({}, -10, at::kChar);
    const std::string bytes = add("QuantizeLinear", {value, scale, zero});
    return add("DequantizeLinear", {bytes, scale, zero});
  }
  std::string output(const std::string& value) { return rounds_outputs_ ? round(value) : value; }
  std::string input(const std::string& value) { return rounds_outputs_ ? value : round(value); }
  /// A dequantized weight with few values.
  std::string weight(const std::string& name, at::IntArrayRef sizes) {
    const at::Tensor kept = at::rand(sizes) < 0.3;
    graph_.constants[name + ".q"] = (at::randn(sizes) * 40 * kept).clamp(-127, 127).to(at::kChar);
    graph_.constants[name + ".s"] = at::rand({sizes[0]}) * 0.01 + 0.002;
    return add("DequantizeLinear", {name + ".q", name + ".s"}, {{"axis", int64_t{0}}});
  }

  bool rounds_outputs_;
  OnnxGraph graph_;
};

TEST(SparseNetwork, QuantizedLayersTakeAndGiveBytes) {
  for (const bool rounds_outputs : {false, true}) {
    const OnnxGraph graph = QuantizedGraph(rounds_outputs).take();
    const FusedGraph made = fused(graph);
    std::vector<std::string> steps;
    for (const Step& step : made.steps) {
      steps.push_back(step.node.op);
      if (step.layer && !step.layer->takes_max) {
        EXPECT_TRUE(step.layer->integers) << step.layer->name;
      }
    }
    // No values between the layers, but where a pooling needs them.
    using Names = std::vector<std::string>;
    const Names ours{"QuantizeLinear",
                     "Conv",
                     "Conv",
                     "Conv",
                     "MaxPool",
                     "QuantizeLinear",
                     "DequantizeLinear",
                     "GlobalAveragePool",
                     "Flatten",
                     "QuantizeLinear",
                     "Gemm"};
    const Names theirs{"QuantizeLinear",
                       "Conv",
                       "Conv",
                       "Conv",
                       "DequantizeLinear",
                       "MaxPool",
                       "QuantizeLinear",
                       "DequantizeLinear",
                       "GlobalAveragePool",
                       "QuantizeLinear",
                       "DequantizeLinear",
                       "Flatten",
                       "QuantizeLinear",
                       "Gemm"};
    EXPECT_EQ(steps, rounds_outputs ? theirs : ours);
    SparseNetwork network(graph);
    for (const int64_t num_samples : {1, 3, 20}) {
      const at::Tensor inputs = at::randn({num_samples, 3, 12, 12});
      const at::Tensor expected = unfused(graph, inputs), got = network.run({inputs}).at(0);
      ASSERT_EQ(got.sizes(), expected.sizes());
      const at::Tensor difference = (got - expected).abs();
      EXPECT_LT((difference > 1e-3).to(at::kFloat).mean().item<float>(), 0.3) << difference;
      EXPECT_LT(difference.max().item<float>(), 0.05) << difference;
    }
    EXPECT_THAT(network.explanation(), HasSubstr(" int8 "));
  }
}

TEST(SparseNetwork, WhatIsNoInt8LayerIsComputedAsWritten) {
  // A weight whose steps above its zero are no int8, a scale that is not positive, a linear layer
  // of tokens, and a product of two values.
  at::manual_seed(4);
  OnnxGraph graph{.inputs = {{.name = "inputs"}}, .outputs = {{.name = "logits"}}};
  graph.constants = {{"w.q", at::randint(0, 255, {6, 6}, at::kByte)},
                     {"w.s", at::scalar_tensor(0.01F)},
                     {"w.z", at::full({}, 3, at::kByte)},
                     {"u.q", at::randint(-127, 127, {6, 4}, at::kChar)},
                     {"u.s", at::rand({4}) * 0.01},
                     {"s", at::scalar_tensor(0.02F)},
                     {"z", at::full({}, 120, at::kByte)},
                     {"bad", at::scalar_tensor(-0.02F)}};
  graph.nodes = {node_of("QuantizeLinear", {"inputs", "s", "z"}, "q"),
                 node_of("DequantizeLinear", {"q", "s", "z"}, "dq"),
                 node_of("DequantizeLinear", {"w.q", "w.s", "w.z"}, "w"),
                 node_of("MatMul", {"dq", "w"}, "a"),
                 node_of("QuantizeLinear", {"a", "bad", "z"}, "b"),
                 node_of("DequantizeLinear", {"b", "bad", "z"}, "c"),
                 node_of("QuantizeLinear", {"c", "s", "z"}, "d"),
                 node_of("DequantizeLinear", {"d", "s", "z"}, "e"),
                 node_of("DequantizeLinear", {"u.q", "u.s"}, "u", {{"axis", int64_t{1}}}),
                 node_of("MatMul", {"e", "u"}, "logits")};
  SparseNetwork network(graph);
  for (const auto& sizes : {std::vector<int64_t>{2, 6}, {2, 5, 6}, {2, 3, 5, 6}}) {
    const at::Tensor inputs = at::randn(sizes);
    const at::Tensor expected = unfused(graph, inputs);
    EXPECT_TRUE(at::allclose(network.run({inputs}).at(0), expected, 1e-3, 1e-3)) << sizes.size();
  }
}

/// Small graphs with int8 layers in unusual surroundings, [N, 4, 6, 6] -> logits.
class OddGraphs {
 public:
  std::map<std::string, OnnxGraph> take() {
    using N = std::vector<OnnxNode>;
    const std::vector<int64_t> two{2, 2};
    const auto q = [](const char* x, const char* y, const char* z = "z") {
      return node_of("QuantizeLinear", {x, "s", z}, y);
    };
    const auto dq = [](const char* x, const char* y, const char* z = "z", const char* s = "s") {
      return node_of("DequantizeLinear", {x, s, z}, y);
    };
    const auto conv = [](const char* x, const char* y, const char* w = "w") {
      return node_of("Conv", {x, w}, y);
    };
    const N begin{node_of("DequantizeLinear", {"w.q", "w.s"}, "w", {{"axis", int64_t{0}}}),
                  q("inputs", "q"), dq("q", "x")};
    add("zero point in one of both", begin,
        {node_of("QuantizeLinear", {"x", "s", "z8"}, "q2"),
         node_of("DequantizeLinear", {"q2", "s"}, "x2"), conv("x2", "logits")});
    add("another scale", begin, {dq("q", "x2", "z", "s2"), conv("x2", "logits")});
    add("no int8 in between", begin,
        {conv("x", "a"), q("a", "q2"), node_of("Concat", {"q2", "q2"}, "b", {{"axis", int64_t{1}}}),
         dq("b", "logits")});
    add("bytes of another operator are added", begin,
        {node_of("Transpose", {"q"}, "t", {{"perm", std::vector<int64_t>{0, 1, 3, 2}}}),
         dq("t", "r"), conv("x", "a"), node_of("Add", {"a", "r"}, "logits")});
    add("a constant after the residual", begin,
        {conv("x", "a"), q("a", "q2"), dq("q2", "b"), node_of("Add", {"b", "x"}, "c"),
         node_of("Add", {"c", "ten"}, "logits")});
    add("a pooling of bytes", begin,
        {conv("x", "a"), q("a", "q2"),
         node_of("MaxPool", {"q2"}, "p", {{"kernel_shape", two}, {"strides", two}}),
         dq("p", "logits")});
    add("an image for rows and for images", begin,
        {node_of("DequantizeLinear", {"v.q", "w.s6"}, "v", {{"axis", int64_t{1}}}),
         node_of("MatMul", {"x", "v"}, "a"), conv("x", "b"), node_of("Add", {"a", "b"}, "logits")});
    add("a layer without weights and another one", begin,
        {node_of("Conv", {"x", "none"}, "a"), node_of("Conv", {"inputs", "none"}, "e"),
         conv("x", "b"), node_of("Conv", {"inputs", "few"}, "c"), node_of("Add", {"a", "b"}, "d"),
         node_of("Add", {"d", "c"}, "f"), node_of("Add", {"f", "e"}, "logits")});
    add("values before the rounding, too", begin,
        {conv("x", "a"), node_of("Neg", {"a"}, "n"), q("a", "q2"), dq("q2", "b"), conv("b", "c"),
         node_of("Add", {"n", "c"}, "logits")});
    add("bytes as the output", begin, {conv("x", "a"), q("a", "logits")});
    add("a name too many", begin,
        {conv("x", "a"), q("a", "q2"), dq("q2", "b"), conv("b", "logits")});
    all_.at("a name too many").nodes[3].outputs.emplace_back("junk");
    return all_;
  }

 private:
  void add(const std::string& what, const std::vector<OnnxNode>& begin,
           const std::vector<OnnxNode>& nodes) {
    at::manual_seed(5);
    OnnxGraph graph{.inputs = {{.name = "inputs"}}, .outputs = {{.name = "logits"}}};
    graph.nodes = begin;
    graph.nodes.insert(graph.nodes.end(), nodes.begin(), nodes.end());
    const auto few = [](at::IntArrayRef sizes) {
      return at::randn(sizes) * (at::rand(sizes) < 0.3).to(at::kFloat);
    };
    graph.constants = {{"w.q", (few({4, 4, 1, 1}) * 40).to(at::kChar)},
                       {"w.s", at::rand({4}) * 0.01},
                       {"w.s6", at::rand({6}) * 0.01},
                       {"v.q", (few({6, 6}) * 40).to(at::kChar)},
                       {"s", at::scalar_tensor(0.03F)},
                       {"s2", at::scalar_tensor(0.01F)},
                       {"z", at::full({}, 120, at::kByte)},
                       {"z8", at::full({}, 0, at::kChar)},
                       {"ten", at::full({4, 1, 1}, 10.0F)},
                       {"none", at::zeros({4, 4, 1, 1})},
                       {"few", few({4, 4, 1, 1})}};
    all_[what] = std::move(graph);
  }

  std::map<std::string, OnnxGraph> all_;
};

TEST(SparseNetwork, OddSurroundingsOfInt8LayersAreComputedAsWritten) {
  for (const auto& [what, graph] : OddGraphs().take()) {
    SparseNetwork network(graph);
    for (const int64_t num_samples : {2, 0, 1}) {
      at::Tensor inputs = at::randn({num_samples, 4, 6, 6}) * 2;
      if (num_samples == 1) inputs[0][1][2][3] = std::numeric_limits<float>::infinity();
      const at::Tensor expected = unfused(graph, inputs), got = network.run({inputs}).at(0);
      ASSERT_EQ(got.sizes(), expected.sizes()) << what;
      EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << what;
      const at::Tensor difference = (got.to(at::kFloat) - expected.to(at::kFloat)).abs();
      EXPECT_TRUE(difference.isnan().equal(
          expected.to(at::kFloat).isinf().logical_or(expected.to(at::kFloat).isnan())))
          << what;
      EXPECT_LE(difference.nan_to_num(0).gt(2e-3).sum().item<int64_t>(), 3) << what << difference;
    }
  }
}

TEST(SparseNetwork, AnUnknownOperatorIsNamed) {
  OnnxGraph graph = residual_graph();
  graph.nodes[1].op = "com.example.Swirl";
  try {
    SparseNetwork network(graph);
    FAIL() << "accepted";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    EXPECT_THAT(fault.what(), HasSubstr("'b': the ONNX operator com.example.Swirl"));
    EXPECT_THAT(fault.what(), HasSubstr("onnxruntime"));
  }
}

TEST(SparseNetwork, InputsOfAnotherShapeAreAnErrorThatNamesTheLayer) {
  SparseNetwork network(residual_graph());
  try {
    (void)network.run({at::randn({2, 4, 12, 12})});
    FAIL() << "accepted";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    EXPECT_THAT(fault.what(), HasSubstr("layer a: takes 3 channels"));
  }
}

TEST(SparseNetwork, OperandsThatDoNotFitAreAnErrorThatNamesTheNode) {
  OnnxGraph graph{.inputs = {{.name = "inputs"}}, .outputs = {{.name = "sum"}}};
  graph.constants["w"] = at::ones({2, 4});
  graph.nodes = {node_of("Add", {"inputs", "w"}, "sum")};
  SparseNetwork network(graph);
  try {
    (void)network.run({at::ones({2, 3})});
    FAIL() << "accepted";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    EXPECT_THAT(fault.what(), HasSubstr("(Add): "));
  }
}

/// Parts of small images, with a rest: the bits of one image after the other are not required.
TEST(SparseNetwork, BatchesOfImagesAreComputedInParts) {
  SparseNetwork network(residual_graph()), whole(residual_graph());
  const at::Tensor inputs = at::randn({21, 3, 12, 12});
  EXPECT_TRUE(at::allclose(network.run({inputs})[0], whole.run_dense({inputs})[0], 1e-4, 1e-5));
}

/// A graph whose bound of a Clip is computed from the inputs, or from their shape.
OnnxGraph bounded_graph(bool by_values) {
  at::manual_seed(1);
  OnnxGraph graph{.inputs = {{.name = "inputs", .shape = {-1, 3, 12, 12}}},
                  .outputs = {{.name = "logits"}}};
  graph.constants = {{"w1", at::randn({4, 3, 3, 3})},
                     {"third", at::tensor({int64_t{2}})},
                     {"all", at::tensor({int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}})},
                     {"zero", at::scalar_tensor(0.0F)}};
  graph.nodes = {node_of("Conv", {"inputs", "w1"}, "a"),
                 node_of("Shape", {"a"}, "sizes"),
                 node_of("Gather", {"sizes", "third"}, "size"),
                 node_of("Cast", {"size"}, "ten", {{"to", int64_t{1}}}),
                 node_of("Abs", {"a"}, "b"),
                 node_of("ReduceMean", {"b"}, "mean", {{"keepdims", int64_t{0}}}),
                 node_of("Clip", {"a", "zero", by_values ? "mean" : "ten"}, "logits")};
  return graph;
}

/// A graph whose outputs are rounded to bytes and back.
OnnxGraph rounded_graph() {
  at::manual_seed(1);
  OnnxGraph graph{.inputs = {{.name = "inputs", .shape = {-1, 3, 12, 12}}},
                  .outputs = {{.name = "logits"}}};
  graph.constants = {{"w1", at::randn({4, 3, 3, 3})},
                     {"scale", at::scalar_tensor(0.05F)},
                     {"offset", at::full({}, 128, at::kByte)}};
  graph.nodes = {node_of("Conv", {"inputs", "w1"}, "a"),
                 node_of("QuantizeLinear", {"a", "scale", "offset"}, "b"),
                 node_of("DequantizeLinear", {"b", "scale", "offset"}, "logits")};
  return graph;
}

TEST(SparseNetwork, ACompiledGraphHasNoConstantsThatDependOnInputs) {
  for (const OnnxGraph& graph :
       {residual_graph(), bounded_graph(false), bounded_graph(true), rounded_graph()}) {
    const LoadedNetwork network{.source = "file", .graph = std::make_shared<OnnxGraph>(graph)};
    const auto engine = make_engine(network, {.engine = "optimized", .tensorrt = {}}, at::kCPU);
    for (const int64_t num_samples : {2, 2, 2, 3}) {
      const at::Tensor inputs = at::randn({num_samples, 3, 12, 12}) * at::rand({});
      const at::Tensor differences = engine->run({inputs}).at(0) - unfused(graph, inputs);
      // Values next to the middle of two steps may be rounded to either.
      EXPECT_LE((differences.abs() > 1e-4).to(at::kFloat).mean().item<double>(), 1e-3);
    }
  }
}

TEST(SparseNetwork, AFasterDenseWayComputesEverything) {
  // Half of the weights: with all of them, a product of 64 samples is about as fast.
  at::manual_seed(1);
  OnnxGraph graph{.inputs = {{.name = "inputs"}}, .outputs = {{.name = "logits"}}};
  graph.constants["w"] = at::randn({512, 512}) * (at::rand({512, 512}) < 0.45);
  graph.nodes = {node_of("MatMul", {"inputs", "w"}, "logits")};
  SparseNetwork network(graph);
  const at::Tensor answer = at::ones({64, 512});
  const auto dense = [&](const auto&) { return std::vector<at::Tensor>{answer}; };
  EXPECT_TRUE(network.run({at::randn({64, 512})}, dense).at(0).equal(answer));
  EXPECT_THAT(network.explanation(), HasSubstr(": dense\n"));
}

}  // namespace sparse_network_test
}  // namespace lockstep::infer
