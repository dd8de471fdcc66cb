#include <cmath>
#include <random>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "infer/engine.h"
#include "infer/onnx.pb.h"
#include "infer/sparse/fusion.h"
#include "infer/sparse/onnx_operators.h"
#include "infer/sparse/sparse_network.h"

// Layers with kept weights and dense ones against ATen's convolution, and ONNX graphs against their
// operators one by one.
namespace lockstep::infer {
namespace sparse_test {

using ::testing::HasSubstr;
namespace pb = lockstep::onnx::pb;

/// Random layer with inputs, of any kind.
struct Case {
  Layer layer;
  at::Tensor inputs, residual;
  std::string text;
};

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) { at::manual_seed(seed); }

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }

  /// A mask: at random, whole rows, blocks of 4, nothing, everything.
  void prune(at::Tensor* weight) {
    static constexpr std::array<double, 5> kKept{0.02, 0.1, 0.2, 0.5, 0.9};
    const double kept = kKept.at(static_cast<size_t>(below(5)));
    const at::Tensor flat = weight->reshape({weight->size(0), -1});
    const int64_t pattern = below(6);
    if (pattern == 0) flat.mul_(at::rand({flat.size(0), 1}) < kept);  // empty channels
    if (pattern == 1)
      flat.mul_((at::rand({flat.size(0), (flat.size(1) + 3) / 4}) < kept)
                    .repeat_interleave(4, 1)
                    .narrow(1, 0, flat.size(1)));
    if (pattern == 2) flat.mul_(one_in(2) ? 0 : 1);
    if (pattern > 2) flat.mul_(at::rand(flat.sizes()) < kept);
  }

  Case layer() {
    Case made;
    Layer& layer = made.layer;
    layer.name = "case";
    layer.is_linear = one_in(4);
    const int64_t num_samples = between(1, one_in(4) ? 40 : 5);
    if (layer.is_linear) {
      layer.weight = at::randn({between(1, 80), between(1, 300), 1, 1});
      made.inputs = at::randn({num_samples, layer.weight.size(1)});
    } else {
      convolution(num_samples, &made);
    }
    if (!layer.takes_max) prune(&layer.weight);
    layer.bias = at::randn({layer.weight.size(0)});
    const int64_t clamp = below(4);
    if (clamp > 0) layer.low = clamp == 3 ? -0.5F : 0;
    if (clamp > 1) layer.high = 1.5F;
    return made;
  }

 private:
  void convolution(int64_t num_samples, Case* made) {
    Layer& layer = made->layer;
    layer.groups = one_in(3) ? between(2, 20) : 1;
    const bool is_depthwise = layer.groups > 1 && one_in(2);
    layer.takes_max = is_depthwise && one_in(2);
    const int64_t inputs_of_group = is_depthwise ? 1 : between(1, 24);
    const int64_t num_outputs = layer.groups * (is_depthwise ? 1 : between(1, 8));
    const std::array<int64_t, 2> kernel{between(1, 4), between(1, one_in(2) ? 1 : 5)};
    std::array<int64_t, 2> size{};
    for (size_t axis = 0; axis < 2; ++axis) {
      layer.stride[axis] = one_in(2) ? 1 : between(1, 3);
      layer.dilation[axis] = one_in(3) ? 2 : 1;
      layer.pads[axis] = below(3);
      layer.pads[axis + 2] = one_in(3) ? below(3) : layer.pads[axis];
      const int64_t reach = layer.dilation[axis] * (kernel[axis] - 1) + 1;
      if (layer.takes_max)  // each window must meet a pixel
        for (const size_t side : {axis, axis + 2})
          layer.pads[side] = std::min(layer.pads[side], reach / 2);
      const int64_t padded = layer.pads[axis] + layer.pads[axis + 2];
      size[axis] = std::max<int64_t>(one_in(6) ? 1 : between(1, 30), reach - padded);
      size[axis] = std::max<int64_t>(size[axis], 1);
    }
    layer.weight = at::randn({num_outputs, inputs_of_group, kernel[0], kernel[1]});
    if (layer.takes_max) layer.weight.fill_(1);
    made->inputs = at::randn({num_samples, inputs_of_group * layer.groups, size[0], size[1]});
  }

  std::mt19937_64 random_;
};

/// The layer by ATen in float64.
at::Tensor reference(const Layer& layer, const at::Tensor& inputs, const at::Tensor& residual) {
  const auto& [top, left, bottom, right] = layer.pads;
  const at::Tensor x = inputs.to(at::kDouble), weight = layer.weight.to(at::kDouble),
                   bias = layer.bias.to(at::kDouble);
  if (layer.takes_max) {
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    return at::max_pool2d(at::constant_pad_nd(inputs, {left, right, top, bottom}, kLeast),
                          layer.weight.sizes().slice(2), layer.stride, at::IntArrayRef({0, 0}),
                          layer.dilation)
        .clamp(layer.low, layer.high);
  }
  at::Tensor y = layer.is_linear ? at::linear(x, weight.flatten(1), bias)
                                 : at::conv2d(at::constant_pad_nd(x, {left, right, top, bottom}),
                                              weight, bias, layer.stride, at::IntArrayRef({0, 0}),
                                              layer.dilation, layer.groups);
  if (residual.defined()) y = y + residual.to(at::kDouble);
  return y.clamp(layer.low, layer.high).to(at::kFloat);
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  if (got.numel() == 0) return;
  EXPECT_LE((got - expected).abs().max().item<double>(), 1e-4) << what;
}

std::string text_of(const Layer& layer, const at::Tensor& inputs) {
  std::ostringstream text;
  text << inputs.sizes() << " weight " << layer.weight.sizes() << " stride "
       << at::IntArrayRef(layer.stride) << " dilation " << at::IntArrayRef(layer.dilation)
       << " pads " << at::IntArrayRef(layer.pads) << " groups " << layer.groups
       << (layer.takes_max ? " max" : "") << " clamp " << layer.low << " " << layer.high;
  return text.str();
}

TEST(SparseLayer, ThreeHundredRandomLayersEqualATens) {
  const at::NoGradGuard no_grad;
  const int num_threads = at::get_num_threads();
  const std::vector<SimdPath> paths = simd_paths();
  for (unsigned seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    Case one = draw.layer();
    Layer& layer = one.layer;
    at::set_num_threads(static_cast<int>(draw.between(1, 3)));
    at::Tensor expected = reference(layer, one.inputs, {});
    if (!layer.takes_max && draw.one_in(3)) {
      layer.adds_residual = true;
      one.residual = at::randn(expected.sizes());
      expected = reference(layer, one.inputs, one.residual);
    }
    const std::string text = std::to_string(seed) + ": " + text_of(layer, one.inputs);
    expect_close(DenseLayer(layer).run({one.inputs, {}}, {one.residual, {}}), expected, text);
    Activations inputs{one.inputs, std::nullopt};
    if (!layer.is_linear && draw.one_in(2)) {  // as the outputs of another layer
      const Planes planes = Planes::make(one.inputs.size(0), one.inputs.sizes().slice(2),
                                         {draw.below(4), draw.below(4)});
      inputs = {planes.allocate(one.inputs.size(1), 0.0F), planes};
      copy_pixels(one.inputs, inputs.tensor);
    }
    KeptLayer kept(layer, paths[seed % paths.size()]);
    Paddings paddings;
    for (int i = 0; i < 2; ++i)
      expect_close(kept.run(inputs, {one.residual, {}}, &paddings).contiguous(), expected, text);
  }
  at::set_num_threads(num_threads);
}

TEST(SparseLayer, LayersAfterEachOtherShareTheirLayout) {
  const at::NoGradGuard no_grad;
  Draw draw(7);
  Layer wide{.weight = at::randn({6, 3, 3, 3}), .bias = at::randn({6}), .pads = {1, 1, 1, 1}};
  Layer shrinking{.weight = at::randn({5, 6, 3, 3}), .bias = at::randn({5})};
  Layer last{.weight = at::randn({4, 5, 3, 3}), .bias = at::randn({4}), .pads = {1, 1, 1, 1}};
  KeptLayer first(wide), second(shrinking), third(last);
  const at::Tensor inputs = at::randn({2, 3, 8, 9});
  Paddings paddings;
  const Activations one = first.run({inputs, {}}, {}, &paddings);
  const Activations two = second.run(one, {}, &paddings);
  EXPECT_EQ(one.planes->stride, two.planes->stride);  // not copied
  const Activations three = third.run(two, {}, &paddings);
  const at::Tensor expected =
      reference(last, reference(shrinking, reference(wide, inputs, {}), {}), {});
  expect_close(three.contiguous() / 10, expected / 10, "three layers");
}

TEST(SparseLayer, NaNInAWeightOrAnInputReachesTheOutputs) {
  const at::NoGradGuard no_grad;
  Layer layer{.weight = at::zeros({2, 3, 1, 1}), .bias = at::zeros({2}), .low = 0};
  layer.weight[1][2] = std::nanf("");
  KeptLayer kept(layer);
  Paddings paddings;
  const at::Tensor answer = kept.run({at::ones({1, 3, 4, 4}), {}}, {}, &paddings).contiguous();
  EXPECT_TRUE(answer[0][0].eq(0).all().item<bool>());
  EXPECT_TRUE(answer[0][1].isnan().all().item<bool>());
  layer.is_linear = true;
  KeptLayer linear(layer);
  const at::Tensor few = linear.run({at::ones({1, 3}), {}}, {}, &paddings).contiguous();
  EXPECT_TRUE(few[0][1].isnan().item<bool>());
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

TEST(SparseNetwork, ALayerUsedTwiceKeepsItsOutputs) {
  OnnxGraph graph = residual_graph();
  graph.outputs.push_back({.name = "c"});
  EXPECT_EQ(fused(graph).steps.size(), 8U);  // the batch normalisation and its Clip stay
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

}  // namespace sparse_test
}  // namespace lockstep::infer
