#include "infer/sparse/sparse_network.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <utility>

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "base/error.h"
#include "infer/sparse/onnx_operators.h"

namespace lockstep::infer {
namespace {

/// Largest share of kept weights for which kept weights are measured.
constexpr double kMostKept = 0.5;
/// Weights of an output channel up to which they are measured at any share: oneDNN needs more than
/// a few inputs, and the layers around need no other layout.
constexpr int64_t kFewWeights = 64;
/// Most samples that are measured: without images, and with.
constexpr int64_t kMostMeasured = 64, kMostImages = 8;
/// Items of the largest activation of the images that are computed at once: half a MiB.
constexpr int64_t kCachedItems = 1 << 17;
/// Measurement of one way: runs, and microseconds after which it ends.
constexpr int kRuns = 3;
constexpr double kLongRun_us = 2e4;
/// Network so fast that the other dense way compiles in no time, too.
constexpr double kShort_us = 1e3;
/// A way that takes this many times as long as the other is not measured again.
constexpr double kClearly = 1.5;
constexpr double kAny_us = std::numeric_limits<double>::infinity();
/// Gain below which the whole network is computed with all weights.
constexpr double kLeastGain = 1.02;

/// Returns the microseconds of the fastest of a few runs, after one to warm up. Ends with a run
/// that takes clearly more than `other_us`.
template <typename Function>
double time_us(const Function& function, double other_us) {
  double least = std::numeric_limits<double>::infinity(), sum = 0;
  for (int i = -1; i < kRuns && sum < kLongRun_us; ++i) {
    const auto start = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    if (i < 0) continue;  // to warm up
    least = std::min(least, taken.count());
    sum += taken.count();
    if (least > kClearly * other_us) break;
  }
  return least;
}

std::vector<at::Tensor> samples_of(const std::vector<at::Tensor>& inputs, int64_t begin,
                                   int64_t length) {
  std::vector<at::Tensor> samples;
  for (const at::Tensor& input : inputs) samples.push_back(input.narrow(0, begin, length));
  return samples;
}

bool has_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kByte || tensor.scalar_type() == at::kChar;
}

}  // namespace

SparseNetwork::Ways::Ways(const Layer& layer) : dense(layer), density(layer.density()) {
  if (layer.integers || density <= kMostKept || layer.weight[0].numel() <= kFewWeights)
    kept = std::make_unique<KeptLayer>(layer);
}

std::vector<size_t> SparseNetwork::ids_of(const std::vector<std::string>& names) {
  std::vector<size_t> ids;
  for (const std::string& name : names)
    ids.push_back(ids_.try_emplace(name, ids_.size()).first->second);
  return ids;
}

SparseNetwork::SparseNetwork(OnnxGraph graph) {
  FusedGraph fused_graph = fused(std::move(graph));
  (void)ids_of({""});  // value 0: not given
  for (const OnnxValue& input : fused_graph.inputs) inputs_.push_back(ids_of({input.name})[0]);
  for (const auto& [name, tensor] : fused_graph.constants) constants_[ids_of({name})[0]] = tensor;
  operations_.reserve(fused_graph.steps.size());  // layers must not move
  for (Step& step : fused_graph.steps) {
    Operation& made = operations_.emplace_back();
    made.step = std::move(step);
    made.inputs = ids_of(made.step.node.inputs);
    made.outputs = ids_of(made.step.node.outputs);
    if (!made.step.layer) continue;
    made.ways = std::make_unique<Ways>(*made.step.layer);
    has_integers_ = has_integers_ || made.step.layer->integers;
    has_images_ = has_images_ || !made.step.layer->is_linear;
    may_pay_ = may_pay_ || made.ways->density <= kMostKept || made.step.layer->integers;
  }
  for (const OnnxValue& output : fused_graph.outputs) outputs_.push_back(ids_of({output.name})[0]);
  std::vector<bool> is_used(ids_.size()), is_for_kept(ids_.size());
  is_used[0] = true;
  for (const size_t id : outputs_) is_used[id] = true;
  for (auto operation = operations_.rbegin(); operation != operations_.rend(); ++operation) {
    operation->feeds_kept = is_for_kept[operation->outputs[0]];
    for (const size_t id : operation->inputs) {
      if (!is_used[id]) operation->last_used.push_back(id);
      is_used[id] = true;
      if (operation->ways && operation->ways->kept) is_for_kept[id] = true;
    }
  }
  for (size_t i = 0; i + 1 < operations_.size(); ++i) {
    Operation &one = operations_[i], &next = operations_[i + 1];
    const auto has_kept = [](const Operation& it) { return it.ways && it.ways->kept; };
    one.goes_with_next =
        has_kept(one) && has_kept(next) && next.inputs[0] == one.outputs[0] &&
        std::ranges::find(next.last_used, one.outputs[0]) != next.last_used.end() &&
        std::ranges::count(next.inputs, one.outputs[0]) == 1 &&
        one.ways->kept->goes_with(*next.ways->kept);
  }
}

/// Returns a layer's inputs in another form in `converted`, if they need one: values or quads along
/// the axis of its channels.
void SparseNetwork::convert(const Layer& layer, const Activations& inputs, Activations* converted) {
  if (!layer.integers) {
    if (inputs.rounding) *converted = restored(inputs, &workspace_);
    return;
  }
  // Images that a linear layer takes row by row have quads along another axis.
  const bool is_along_other =
      inputs.rounding && inputs.tensor.dim() == 4 && layer.is_linear == inputs.planes.has_value();
  if (is_along_other || (!inputs.rounding && has_bytes(inputs.tensor)))
    *converted = packed(inputs.contiguous(), layer.integers->inputs, layer.is_linear, &workspace_);
}

/// Returns the sizes of a layer's outputs. Throws Error(kBadData) for inputs that do not fit.
std::vector<int64_t> SparseNetwork::output_sizes(const Layer& layer, const Activations& inputs) {
  const int64_t num_inputs = layer.weight.size(1) * layer.groups;
  const int64_t axis = layer.is_linear ? -1 : 1, rank = inputs.tensor.dim();
  const bool fits = layer.is_linear ? rank >= 1 : rank == 4;
  const auto dtype = layer.integers ? at::kInt : at::kFloat;
  const int64_t num_channels = !fits             ? 0
                               : inputs.rounding ? inputs.num_channels
                                                 : inputs.tensor.size(axis);
  if (num_channels != num_inputs || inputs.tensor.scalar_type() != dtype)
    throw Error(
        ExitCode::kBadData, "infer",
        fmt::format("layer {}: takes {} channels of {}, not [{}]", layer.name, num_inputs,
                    layer.integers ? "bytes" : "float32", fmt::join(inputs.tensor.sizes(), ", ")));
  std::vector<int64_t> sizes = inputs.tensor.sizes().vec();
  sizes[static_cast<size_t>(layer.is_linear ? rank - 1 : 1)] = layer.weight.size(0);
  if (layer.is_linear) return sizes;
  const auto [height, width] = layer.output_size(sizes[2], sizes[3]);
  sizes[2] = height;
  sizes[3] = width;
  return sizes;
}

/// Returns the residual of a layer with outputs of these sizes: quads if the layer can take them.
Activations SparseNetwork::residual_of(const Layer& layer, Activations residual,
                                       const std::vector<int64_t>& sizes) {
  if (residual.rounding) {
    const auto rank = static_cast<int64_t>(sizes.size());
    const bool has_form = residual.tensor.dim() == rank && rank == (layer.is_linear ? 2 : 4) &&
                          (layer.is_linear || residual.planes);
    const bool is_like = has_form && residual.num_channels == layer.weight.size(0) &&
                         residual.tensor.size(0) == sizes[0] &&
                         residual.tensor.sizes().slice(2) == at::IntArrayRef(sizes).slice(2);
    if (is_like && layer.integers) return residual;
    residual = restored(residual, &workspace_);
  }
  if (residual.tensor.scalar_type() != at::kFloat)
    throw Error(ExitCode::kBadData, "infer",
                fmt::format("layer {}: adds values of another type than float32", layer.name));
  if (at::is_expandable_to(residual.tensor.sizes(), sizes) && residual.tensor.sizes() != sizes)
    residual = {residual.tensor.expand(sizes)};
  return residual;
}

/// Computes a layer whose residual has more axes or larger ones than its outputs. Throws
/// Error(kBadData) if they do not extend each other.
at::Tensor SparseNetwork::add_larger(const Operation& operation, const at::Tensor& inputs,
                                     const at::Tensor& residual) {
  const Layer& layer = *operation.step.layer;
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::kBadData, "infer", fmt::format("layer {}: {}", layer.name, why));
  };
  if (layer.integers) refuse("adds values that are larger than its outputs, which are int8");
  try {
    return operation.ways->dense.run_plain(inputs, residual);
  } catch (const c10::Error& fault) {
    refuse(fault.what_without_backtrace());
  }
  return {};
}

/// Runs a layer. Linear layers see all axes but the last as samples.
void SparseNetwork::run_layer(const Operation& operation, const RunLayer& run, Values* values) {
  const Layer& layer = *operation.step.layer;
  Activations* whole = &(*values)[operation.inputs[0]];
  Activations converted, residual;  // for this layer only
  convert(layer, *whole, &converted);
  if (converted.tensor.defined()) whole = &converted;
  std::vector<int64_t> sizes = output_sizes(layer, *whole);
  if (layer.adds_residual) residual = residual_of(layer, (*values)[operation.inputs[1]], sizes);
  const auto place = static_cast<size_t>(&operation - operations_.data());
  if (residual.tensor.defined() && !residual.rounding && residual.tensor.sizes() != sizes) {
    if (waiting_.tensor.defined())
      *whole = operations_[place - 1].ways->kept->run(waiting_, {}, &workspace_).values;
    waiting_ = {};
    (*values)[operation.outputs[0]] = {
        add_larger(operation, whole->contiguous(), residual.contiguous())};
    return;
  }
  const bool reshapes = layer.is_linear && sizes.size() != 2;
  Activations rows = *whole;
  if (reshapes) {
    rows.tensor = rows.tensor.reshape({-1, rows.tensor.size(-1)});
    rows.planes.reset();
    if (layer.adds_residual) residual = {residual.tensor.reshape({-1, layer.weight.size(0)})};
  }
  LayerOutputs outputs = run(place, reshapes ? &rows : whole, residual);
  for (Activations* made : {&outputs.values, &outputs.bytes})
    if (reshapes && made->tensor.defined()) {
      sizes.back() = made->tensor.size(-1);
      made->tensor = made->tensor.reshape(sizes);
      made->planes.reset();
    }
  (*values)[operation.outputs[0]] = std::move(outputs.values);
  if (layer.output_rounding) (*values)[operation.outputs[1]] = std::move(outputs.bytes);
}

/// Runs an operator that is no layer.
void SparseNetwork::run_operator(const Operation& operation, Values* values) {
  const OnnxNode& node = operation.step.node;
  if (operation.step.rounding && !torch::jit::tracer::isTracing()) {
    const Activations& input = (*values)[operation.inputs[0]];
    const bool is_back = node.op == "DequantizeLinear";
    if (is_back && input.rounding) {
      (*values)[operation.outputs[0]] = restored(input, &workspace_);
      return;
    }
    if (!is_back && !input.rounding && input.tensor.scalar_type() == at::kFloat &&
        input.tensor.dim() > 0) {
      (*values)[operation.outputs[0]] = rounded(input, *operation.step.rounding, &workspace_);
      return;
    }
  }
  std::vector<at::Tensor> tensors;
  for (const size_t id : operation.inputs)
    tensors.push_back(id == 0 ? at::Tensor() : (*values)[id].contiguous());
  std::vector<at::Tensor> made = run_onnx(node, tensors);
  for (size_t i = 0; i < std::min(made.size(), operation.outputs.size()); ++i)
    (*values)[operation.outputs[i]] = {std::move(made[i])};
}

std::vector<at::Tensor> SparseNetwork::compute(const std::vector<at::Tensor>& inputs,
                                               const RunLayer& run) {
  check(inputs.size() == inputs_.size(), "a network gets all of its inputs");
  waiting_ = {};  // of a run that has failed
  Values values(ids_.size());
  for (const auto& [id, tensor] : constants_) values[id].tensor = tensor;
  for (size_t i = 0; i < inputs.size(); ++i) values[inputs_[i]].tensor = inputs[i];
  for (const Operation& operation : operations_) {
    if (operation.ways)
      run_layer(operation, run, &values);
    else
      run_operator(operation, &values);
    for (const size_t id : operation.last_used) values[id] = {};
  }
  std::vector<at::Tensor> outputs;
  for (const size_t id : outputs_) outputs.push_back(values[id].contiguous());
  return outputs;
}

std::vector<at::Tensor> SparseNetwork::compute(const std::vector<at::Tensor>& inputs,
                                               const Plan& plan) {
  return compute(inputs, [&](size_t i, Activations* in, const Activations& residual) {
    return run_chosen(plan, i, in, residual);
  });
}

/// Runs a layer as chosen. One that goes with the next leaves its inputs in waiting_, and returns
/// outputs with their sizes but without values.
LayerOutputs SparseNetwork::run_chosen(const Plan& plan, size_t i, Activations* inputs,
                                       const Activations& residual) {
  const Operation& operation = operations_[i];
  const Layer& layer = *operation.step.layer;
  Activations sums = residual;
  sums.may_change =
      layer.adds_residual &&
      std::ranges::find(operation.last_used, operation.inputs[1]) != operation.last_used.end();
  if (waiting_.tensor.defined())
    return operations_[i - 1].ways->kept->run_with(operation.ways->kept.get(),
                                                   std::exchange(waiting_, {}), sums, &workspace_);
  const auto is_kept = [&](size_t at) {
    return plan.choices[at].is_kept || operations_[at].step.layer->integers;
  };
  if (!is_kept(i)) return {.values = {operation.ways->dense.run(*inputs, residual)}, .bytes = {}};
  if (!operation.goes_with_next || !is_kept(i + 1)) return run_kept(operation, inputs, sums);
  waiting_ = *inputs = operation.ways->kept->prepared(*inputs, &workspace_);
  const at::Tensor item = at::empty({1}, at::kFloat);  // for outputs that are never stored
  return {.values = {item.expand(output_sizes(layer, *inputs))}, .bytes = {}};
}

LayerOutputs SparseNetwork::run_kept(const Operation& operation, Activations* inputs,
                                     const Activations& residual) {
  KeptLayer& kept = *operation.ways->kept;
  *inputs = kept.prepared(*inputs, &workspace_);
  return kept.run(*inputs, residual, &workspace_);
}

/// Returns a text that layers have in common which take about the same time.
std::string SparseNetwork::kind_of(const Operation& operation, const Activations& inputs) {
  constexpr double kStep = 0.02;  // of densities
  const Layer& layer = *operation.step.layer;
  return fmt::format("{} {} {} {} {} {} {}{}{}{}{}{} {:.0f}", fmt::join(layer.weight.sizes(), "x"),
                     fmt::join(inputs.tensor.sizes(), "x"), fmt::join(layer.stride, ","),
                     fmt::join(layer.dilation, ","), fmt::join(layer.pads, ","), layer.groups,
                     layer.is_linear, layer.takes_max, layer.adds_residual, operation.feeds_kept,
                     layer.integers.has_value(), inputs.planes.has_value(),
                     operation.ways->density / kStep);
}

/// Measures both ways of a layer, as if all other layers that may use kept weights did so.
SparseNetwork::Choice SparseNetwork::measure(Operation* operation, const Activations& inputs,
                                             const Activations& residual) {
  Ways& ways = *operation->ways;
  Choice choice;
  choice.kept_us = time_us([&] { (void)ways.kept->run(inputs, residual, &workspace_); }, kAny_us);
  choice.is_kept = true;
  if (operation->step.layer->integers) return choice;  // the only way
  choice.dense_us = time_us(
      [&] {
        const at::Tensor outputs = ways.dense.run(inputs, residual);
        if (!operation->feeds_kept || outputs.dim() != 4) return;
        const Planes planes =
            Planes::make(outputs.size(0), outputs.sizes().slice(2), at::IntArrayRef({1, 1}));
        copy_pixels(outputs, planes.allocate(outputs.size(1), 0, at::kFloat, &workspace_.arena));
      },
      choice.kept_us);
  choice.is_kept = choice.kept_us < choice.dense_us;
  return choice;
}

SparseNetwork::Plan SparseNetwork::measured(const std::vector<at::Tensor>& inputs,
                                            const Dense& dense) {
  const Way other = dense ? Way::kOther : Way::kDense;
  Plan plan{.choices = std::vector<Choice>(operations_.size()), .way = other};
  plan.num_samples = inputs[0].size(0);
  if (plan.num_samples == 0) return plan;
  std::map<std::string, Choice> known;  // by kind of layer
  double sum_us = 0;
  (void)compute(inputs, [&](size_t i, Activations* in, const Activations& residual) {
    Operation& operation = operations_[i];
    if (!operation.ways->kept)
      return LayerOutputs{.values = {operation.ways->dense.run(*in, residual)}, .bytes = {}};
    const auto [choice, is_new] = known.try_emplace(kind_of(operation, *in));
    if (is_new) choice->second = measure(&operation, *in, residual);
    plan.choices[i] = choice->second;
    sum_us += plan.choices[i].dense_us;
    return run_kept(operation, in, residual);
  });
  plan.kept_us = time_us([&] { (void)compute(inputs, plan); }, kAny_us);
  // The first run with all weights takes long: oneDNN lays them out. So it is not asked without
  // hope.
  plan.dense_us =
      sum_us > 2 * plan.kept_us ? sum_us : time_us([&] { (void)run_dense(inputs); }, plan.kept_us);
  // The other way of a large network needs seconds to compile.
  if (dense && (plan.dense_us < kClearly * plan.kept_us || plan.kept_us < kShort_us))
    plan.dense_us = time_us([&] { (void)dense(inputs); }, plan.kept_us);
  plan.way = plan.dense_us < kLeastGain * plan.kept_us ? other : Way::kChosen;
  return plan;
}

/// Returns the number of samples that are computed at once and measured, a power of two.
int64_t SparseNetwork::num_at_once(const std::vector<at::Tensor>& inputs) {
  if (num_at_once_ == 0 && has_images_) {
    int64_t largest = 1;
    (void)compute(samples_of(inputs, 0, 1), [&](size_t i, Activations* in, const auto& residual) {
      const Operation& operation = operations_[i];
      LayerOutputs outputs;
      if (operation.ways->kept)
        outputs = run_kept(operation, in, residual);
      else
        outputs.values.tensor = operation.ways->dense.run(*in, residual);
      for (const Activations& made : {outputs.values, outputs.bytes})
        if (made.tensor.defined()) largest = std::max(largest, made.tensor.numel());
      return outputs;
    });
    num_at_once_ = std::clamp(kCachedItems / largest, int64_t{1}, kMostImages);
  }
  const int64_t most = has_images_ ? num_at_once_ : kMostMeasured;
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::min(inputs.at(0).size(0), most))));
}

std::vector<at::Tensor> SparseNetwork::run_dense(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const Plan plan{.choices = std::vector<Choice>(operations_.size())};
  return compute(inputs, plan);
}

std::vector<at::Tensor> SparseNetwork::run_plain(const std::vector<at::Tensor>& inputs) {
  check(!has_integers_, "int8 layers have kernels of their own only");
  const at::NoGradGuard no_grad;
  return compute(inputs, [&](size_t i, Activations* in, const Activations& residual) {
    const DenseLayer& layer = operations_[i].ways->dense;
    return LayerOutputs{.values = {layer.run_plain(in->tensor, residual.tensor)}, .bytes = {}};
  });
}

std::vector<at::Tensor> SparseNetwork::run(const std::vector<at::Tensor>& inputs,
                                           const Dense& dense) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const int64_t num_samples = inputs.at(0).size(0);
  const int64_t num_measured = may_pay_ && num_samples > 0 ? num_at_once(inputs) : 0;
  auto found = plans_.find(num_measured);
  if (found == plans_.end())
    found =
        plans_.emplace(num_measured, measured(samples_of(inputs, 0, num_measured), dense)).first;
  last_ = &found->second;
  const auto run_part = [&](const std::vector<at::Tensor>& part) {
    if (last_->way == Way::kOther && dense) return dense(part);
    // int8 layers are fast only if the activations of all images fit the caches.
    return last_->way == Way::kChosen || has_integers_ ? compute(part, *last_) : run_dense(part);
  };
  if (!has_images_ || num_measured == 0 || num_samples == num_measured) return run_part(inputs);
  // The activations of more images would not fit the caches.
  std::vector<std::vector<at::Tensor>> parts(outputs_.size());
  for (int64_t i = 0; i < num_samples; i += num_measured) {
    const int64_t length = std::min(num_measured, num_samples - i);
    const std::vector<at::Tensor> outputs = run_part(samples_of(inputs, i, length));
    for (size_t k = 0; k < parts.size(); ++k) parts[k].push_back(outputs[k]);
  }
  std::vector<at::Tensor> joined;
  for (const std::vector<at::Tensor>& part : parts) joined.push_back(at::cat(part));
  return joined;
}

std::string SparseNetwork::explanation() const {
  if (last_ == nullptr) return "";
  std::string text = fmt::format("{:<32} {:<20} {:>7}  {:<6} {:>10} {:>10}\n", "layer", "weight",
                                 "kept", "engine", "dense us", "sparse us");
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (!operations_[i].ways) continue;
    const Layer& layer = *operations_[i].step.layer;
    const Choice& choice = last_->choices[i];
    const auto sizes = layer.is_linear ? layer.weight.sizes().slice(0, 2) : layer.weight.sizes();
    const bool is_int8 = layer.integers && last_->way != Way::kOther;
    const bool is_kept = choice.is_kept && last_->way == Way::kChosen;
    const char* const engine = is_int8 ? "int8" : is_kept ? "sparse" : "dense";
    const auto number = [](double us) { return us > 0 ? fmt::format("{:.1f}", us) : "-"; };
    text +=
        fmt::format("{:<32} {:<20} {:>6.1f}%  {:<6} {:>10} {:>10}\n", layer.name,
                    fmt::format("{}", fmt::join(sizes, "x")), 100 * operations_[i].ways->density,
                    engine, number(choice.dense_us), number(choice.kept_us));
  }
  return text + fmt::format(
                    "whole network, {} sample(s): dense {:.1f} us, with the layers chosen "
                    "{:.1f} us: {}\n",
                    last_->num_samples, last_->dense_us, last_->kept_us,
                    last_->way == Way::kChosen ? "sparse" : "dense");
}

}  // namespace lockstep::infer
