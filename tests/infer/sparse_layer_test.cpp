#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "infer/sparse/layer.h"

// Layers with kept weights, dense and quantized ones against ATen's convolution, and their memory.
namespace lockstep::infer {
namespace sparse_layer_test {

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
      if (one_in(8)) layer.pads[axis] = 0;
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

/// Memory whose first blocks are not zero but NaN, as after other layers.
struct UsedWorkspace : Workspace {
  UsedWorkspace() {
    constexpr int64_t kItems = 1 << 20;
    const auto block = arena.take(kItems * int64_t{sizeof(float)});
    auto* const items = static_cast<float*>(block.get());
    std::fill(items, items + kItems, std::numeric_limits<float>::quiet_NaN());
  }
};

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
    UsedWorkspace workspace;
    Activations inputs{one.inputs, std::nullopt};
    if (!layer.is_linear && draw.one_in(2)) {  // as the outputs of another layer
      const Planes planes = Planes::make(one.inputs.size(0), one.inputs.sizes().slice(2),
                                         {draw.below(4), draw.below(4)});
      inputs = {planes.allocate(one.inputs.size(1), 0, at::kFloat, &workspace.arena), planes};
      copy_pixels(one.inputs, inputs.tensor);
    }
    KeptLayer kept(layer, paths[seed % paths.size()]);
    for (int i = 0; i < 2; ++i)
      expect_close(kept.run(inputs, {one.residual, {}}, &workspace).values.contiguous(), expected,
                   text);
  }
  at::set_num_threads(num_threads);
}

/// Error as a share of the largest value, after sums over two layers.
void expect_near(const Activations& got, const at::Tensor& expected, const std::string& what) {
  const double largest = expected.numel() > 0 ? expected.abs().max().item<double>() + 1 : 1;
  expect_close(got.contiguous() / largest, expected / largest, what);
}

TEST(SparseLayer, ALayerAndTheNextGiveTheOutputsOfBoth) {
  const at::NoGradGuard no_grad;
  const int num_threads = at::get_num_threads();
  int num_pairs = 0;
  for (unsigned seed = 1000; seed < 1200; ++seed) {
    Draw draw(seed);
    Case one = draw.layer();
    if (one.layer.is_linear) continue;
    at::set_num_threads(static_cast<int>(draw.between(1, 3)));
    Layer last{.weight = at::randn({draw.between(1, 80), one.layer.weight.size(0), 1, 1})};
    draw.prune(&last.weight);
    last.bias = at::randn({last.weight.size(0)});
    if (draw.one_in(2)) last.low = 0;
    KeptLayer first(one.layer), next(last);
    ASSERT_TRUE(first.goes_with(next));
    ++num_pairs;
    const std::string text = std::to_string(seed) + ": " + text_of(one.layer, one.inputs);
    const at::Tensor between = reference(one.layer, one.inputs, {});
    UsedWorkspace workspace;
    Activations sums = first.run_with(&next, {one.inputs, {}}, {}, &workspace).values;
    expect_near(sums, reference(last, between, {}), text);
    const at::Tensor added = sums.contiguous();
    // The memory of a residual that no other layer reads gets the outputs.
    sums.may_change = true;
    const Activations outputs = first.run_with(&next, {one.inputs, {}}, sums, &workspace).values;
    expect_near(outputs, reference(last, between, added), text);
    EXPECT_EQ(outputs.tensor.const_data_ptr(), sums.tensor.const_data_ptr()) << text;
  }
  EXPECT_GT(num_pairs, 100);
  at::set_num_threads(num_threads);
}

TEST(SparseLayer, LargeWindowsOfStrideTwoAddAllWeights) {
  const at::NoGradGuard no_grad;
  Layer deep{.weight = at::randn({40, 1, 9, 9}),
             .bias = at::randn({40}),
             .stride = {2, 2},
             .pads = {4, 4, 4, 4},
             .groups = 40};
  Layer pool{.weight = at::ones({40, 1, 8, 8}),
             .bias = at::zeros({40}),
             .stride = {2, 2},
             .groups = 40,
             .takes_max = true};
  const at::Tensor inputs = at::randn({2, 40, 30, 31});
  for (const Layer& layer : {deep, pool}) {
    Workspace workspace;
    expect_near(KeptLayer(layer).run({inputs, {}}, {}, &workspace).values,
                reference(layer, inputs, {}), text_of(layer, inputs));
  }
}

TEST(SparseLayer, NoSamplesGiveNoOutputs) {
  const at::NoGradGuard no_grad;
  Layer layer{.weight = at::randn({5, 3, 3, 3}), .bias = at::randn({5}), .pads = {1, 1, 1, 1}};
  KeptLayer kept(layer);
  Workspace workspace;
  const at::Tensor none = at::empty({0, 3, 8, 8});
  EXPECT_EQ(kept.run({none, {}}, {}, &workspace).values.contiguous().sizes(),
            (std::vector<int64_t>{0, 5, 8, 8}));
}

TEST(SparseLayer, ALinearLayersResidualMayHaveNoOtherReader) {
  const at::NoGradGuard no_grad;
  Layer layer{.is_linear = true, .weight = at::randn({30, 30, 1, 1}), .bias = at::randn({30})};
  KeptLayer kept(layer);
  Workspace workspace;
  const at::Tensor inputs = at::randn({7, 30});
  Activations sums = kept.run({inputs, {}}, {}, &workspace).values;
  const at::Tensor added = sums.contiguous().clone();
  sums.may_change = true;
  expect_near(kept.run({inputs, {}}, sums, &workspace).values, reference(layer, inputs, added),
              "linear");
}

TEST(SparseLayer, InputsThatAreTheResidualTooKeepTheirMemory) {
  const at::NoGradGuard no_grad;
  Draw draw(8);
  Layer layer{.weight = at::randn({40, 40, 1, 1}), .bias = at::randn({40}), .adds_residual = true};
  Layer before{.weight = at::randn({40, 40, 3, 3}), .bias = at::randn({40}), .pads = {1, 1, 1, 1}};
  KeptLayer kept(layer), first(before);
  Workspace workspace;
  Activations x = first.run({at::randn({2, 40, 15, 15}), {}}, {}, &workspace).values;
  x.may_change = true;
  const at::Tensor inputs = x.contiguous();
  expect_near(kept.run(x, x, &workspace).values, reference(layer, inputs, inputs), "one layer");
  const at::Tensor both = reference(layer, reference(before, inputs, {}), inputs);
  expect_near(first.run_with(&kept, x, x, &workspace).values, both, "two layers");
}

TEST(SparseLayer, LayersAfterEachOtherShareTheirLayout) {
  const at::NoGradGuard no_grad;
  Draw draw(7);
  Layer wide{.weight = at::randn({6, 3, 3, 3}), .bias = at::randn({6}), .pads = {1, 1, 1, 1}};
  Layer shrinking{.weight = at::randn({5, 6, 3, 3}), .bias = at::randn({5})};
  Layer last{.weight = at::randn({4, 5, 3, 3}), .bias = at::randn({4}), .pads = {1, 1, 1, 1}};
  KeptLayer first(wide), second(shrinking), third(last);
  const at::Tensor inputs = at::randn({2, 3, 8, 9});
  Workspace workspace;
  const Activations one = first.run({inputs, {}}, {}, &workspace).values;
  const Activations two = second.run(one, {}, &workspace).values;
  EXPECT_EQ(one.planes->stride, two.planes->stride);  // not copied
  const Activations three = third.run(two, {}, &workspace).values;
  const at::Tensor expected =
      reference(last, reference(shrinking, reference(wide, inputs, {}), {}), {});
  expect_close(three.contiguous() / 10, expected / 10, "three layers");
}

TEST(SparseLayer, NaNInAWeightOrAnInputReachesTheOutputs) {
  const at::NoGradGuard no_grad;
  Layer layer{.weight = at::zeros({2, 3, 1, 1}), .bias = at::zeros({2}), .low = 0};
  layer.weight[1][2] = std::nanf("");
  KeptLayer kept(layer);
  Workspace workspace;
  const at::Tensor answer =
      kept.run({at::ones({1, 3, 4, 4}), {}}, {}, &workspace).values.contiguous();
  EXPECT_TRUE(answer[0][0].eq(0).all().item<bool>());
  EXPECT_TRUE(answer[0][1].isnan().all().item<bool>());
  layer.is_linear = true;
  KeptLayer linear(layer);
  const at::Tensor few = linear.run({at::ones({1, 3}), {}}, {}, &workspace).values.contiguous();
  EXPECT_TRUE(few[0][1].isnan().item<bool>());
}

Rounding rounding_of(const at::Tensor& values, Draw* draw) {
  const auto largest = values.numel() == 0 ? 1.0F : values.abs().max().item<float>() + 1e-3F;
  const bool is_signed = draw->one_in(2);
  return {.scale = largest / 120,
          .zero = static_cast<int32_t>(draw->between(100, 140)),
          .is_signed = is_signed};
}

/// Values rounded to steps, from double precision.
at::Tensor steps_of(const at::Tensor& values, const Rounding& rounding) {
  return (values.to(at::kDouble) / rounding.scale).round().add(rounding.zero).clamp(0, 255);
}
at::Tensor values_of(const at::Tensor& steps, const Rounding& rounding) {
  return (steps.to(at::kDouble) - rounding.zero) * static_cast<double>(rounding.scale);
}

/// Makes a layer quantized, with rounded inputs.
Activations quantize(Case* one, Draw* draw, Workspace* workspace) {
  Layer& layer = one->layer;
  const at::Tensor integers = (layer.weight * 50).round().clamp(-127, 127);
  const at::Tensor scale_O = at::rand({layer.weight.size(0)}) * 0.02 + 1e-3;
  layer.weight = integers * scale_O.reshape({-1, 1, 1, 1});
  const Rounding rounding = rounding_of(one->inputs, draw);
  const at::Tensor steps = steps_of(one->inputs, rounding);
  one->inputs = values_of(steps, rounding);
  layer.integers = Integers{
      .weight = integers.to(at::kChar), .factors_O = scale_O * rounding.scale, .inputs = rounding};
  const at::Tensor bytes = rounding.is_signed ? (steps - 128).to(at::kChar) : steps.to(at::kByte);
  return draw->one_in(2) ? packed(bytes, rounding, layer.is_linear, workspace)
                         : rounded({one->inputs.to(at::kFloat)}, rounding, workspace);
}

/// Largest share of values that may be one step off: sums in double precision are rounded to the
/// other side.
constexpr double kMostTies = 0.01;

TEST(SparseLayer, ThreeHundredQuantizedLayersEqualTheirStepsInDoublePrecision) {
  const at::NoGradGuard no_grad;
  const int num_threads = at::get_num_threads();
  const std::vector<SimdPath> paths = simd_paths();
  int64_t num_off = 0, num_values = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    Case one = draw.layer();
    Layer& layer = one.layer;
    if (layer.takes_max) continue;
    at::set_num_threads(static_cast<int>(draw.between(1, 3)));
    Workspace workspace;
    Activations residual;
    const Activations inputs = quantize(&one, &draw, &workspace);
    Layer plain = layer;
    plain.low = -std::numeric_limits<float>::infinity();
    plain.high = std::numeric_limits<float>::infinity();
    at::Tensor expected = reference(plain, one.inputs, {}).to(at::kDouble);
    double tolerance = 1e-4;
    if (draw.one_in(3)) {
      layer.adds_residual = true;
      residual.tensor = at::randn(expected.sizes());
      if (draw.one_in(2)) {
        layer.inner_rounding = rounding_of(expected, &draw);
        expected = values_of(steps_of(expected, *layer.inner_rounding), *layer.inner_rounding);
        tolerance += layer.inner_rounding->scale;
      }
      expected = expected + residual.tensor;
      if (draw.one_in(2)) {
        const Rounding rounding = rounding_of(residual.tensor, &draw);
        const at::Tensor values = values_of(steps_of(residual.tensor, rounding), rounding);
        expected = expected - residual.tensor + values;
        residual = rounded({residual.tensor}, rounding, &workspace);
      }
    }
    expected = expected.clamp(layer.low, layer.high);
    if (draw.one_in(2)) {
      layer.output_rounding = rounding_of(expected, &draw);
      layer.keeps_values = draw.one_in(2);
    }
    const std::string text = std::to_string(seed) + ": " + text_of(layer, one.inputs);
    KeptLayer kept(layer, paths[seed % paths.size()]);
    for (int i = 0; i < 2; ++i) {
      const LayerOutputs outputs = kept.run(inputs, residual, &workspace);
      const auto compare = [&](const at::Tensor& got, const at::Tensor& wanted, double most) {
        ASSERT_EQ(got.sizes(), wanted.sizes()) << text;
        const at::Tensor difference = (got.to(at::kDouble) - wanted).abs();
        EXPECT_LE(difference.max().item<double>(), most) << text;
        num_off += (difference > 1e-4).sum().item<int64_t>();
        num_values += got.numel();
      };
      if (layer.keeps_values) {
        compare(outputs.values.contiguous(), expected, tolerance);
      }
      if (layer.output_rounding) {
        at::Tensor bytes = outputs.bytes.contiguous();
        EXPECT_EQ(bytes.scalar_type(), layer.output_rounding->is_signed ? at::kChar : at::kByte);
        if (layer.output_rounding->is_signed) bytes = bytes.to(at::kInt) + 128;
        const double steps =
            layer.inner_rounding ? layer.inner_rounding->scale / layer.output_rounding->scale : 0;
        compare(bytes, steps_of(expected, *layer.output_rounding), 1 + std::ceil(steps));
        const at::Tensor back = restored(outputs.bytes, &workspace).contiguous();
        EXPECT_TRUE(at::allclose(back.to(at::kDouble), values_of(bytes, *layer.output_rounding),
                                 1e-5, 1e-6))
            << text;
      }
    }
  }
  at::set_num_threads(num_threads);
  EXPECT_GT(num_values, 100000);
  EXPECT_LT(static_cast<double>(num_off), kMostTies * static_cast<double>(num_values));
}

// Without OpenMP's option of the compiler, ATen's loops in our sources run on one thread.
TEST(SparseLayer, LoopsRunOnAllThreads) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(3);
  std::array<std::thread::id, 3> ids;
  at::parallel_for(0, 3, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      ids.at(static_cast<size_t>(i)) = std::this_thread::get_id();
  });
  at::set_num_threads(num_threads);
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 3U);
}

TEST(Arena, BlocksAreUsedAgainAndApart) {
  Arena arena;
  std::mt19937_64 random(1);
  std::vector<std::pair<std::shared_ptr<void>, uint8_t>> blocks;
  std::vector<size_t> sizes;
  for (int i = 0; i < 3000; ++i) {
    if (!blocks.empty() && random() % 2 == 0) {
      const size_t at = random() % blocks.size();
      const auto* const bytes = static_cast<const uint8_t*>(blocks[at].first.get());
      for (size_t k = 0; k < sizes[at]; ++k) ASSERT_EQ(bytes[k], blocks[at].second);
      blocks.erase(blocks.begin() + static_cast<int64_t>(at));
      sizes.erase(sizes.begin() + static_cast<int64_t>(at));
      continue;
    }
    sizes.push_back(random() % 5000);
    blocks.emplace_back(arena.take(static_cast<int64_t>(sizes.back())),
                        static_cast<uint8_t>(random()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().first.get()) % 64, 0U);
    std::memset(blocks.back().first.get(), blocks.back().second, sizes.back());
  }
  blocks.clear();
  // All that was free is one range again: the first block of any size begins where the first did.
  const void* const first = arena.take(1).get();
  EXPECT_EQ(arena.take(20 << 20).get(), first);
  EXPECT_NE(arena.take(200 << 20), nullptr);  // more than a chunk
}

TEST(Arena, ABlockOutlivesItAndMayEndInAnotherThread) {
  auto arena = std::make_unique<Arena>();
  std::shared_ptr<void> block = arena->take(100);
  arena.reset();
  std::memset(block.get(), 1, 100);
  std::thread([held = std::move(block)]() mutable { held.reset(); }).join();
}

}  // namespace sparse_layer_test
}  // namespace lockstep::infer
