#include "model/layers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

#include "base/digest.h"
#include "base/error.h"
#include "model/linear/semi_sparse.h"

namespace lockstep::model {
namespace {

constexpr uint64_t kWordsOfANormal = 3;

/// Approximately normal: the sum of twelve 16-bit uniform numbers minus its mean. Variance 1,
/// limits ±6. Exact on every machine, unlike the logarithms and cosines of C libraries.
double normal_number(const CounterRandom& random, uint64_t index) {
  int64_t sum = 0;
  for (uint64_t word = 0; word < kWordsOfANormal; ++word) {
    const uint64_t bits = random.bits(index * kWordsOfANormal + word);
    for (int shift = 0; shift < 64; shift += 16)
      sum += static_cast<int64_t>((bits >> shift) & 0xffffU);
  }
  // Twelve uniform numbers of variance 1/12 each add up to variance 1.
  return static_cast<double>(sum - 6 * 0xffff) * 0x1.0p-16;
}

/// Product of all extents but the first: the number of inputs of one output of a weight [O, ...].
int64_t fan_in_of(at::IntArrayRef weight_shape) {
  return c10::multiply_integers(weight_shape.slice(1));
}

int64_t fan_out_of(at::IntArrayRef weight_shape) {
  return fan_in_of(weight_shape) / weight_shape[1] * weight_shape[0];
}

/// Replaces the kinds that depend on the shape by plain ones.
Initial for_shape(Initial values, at::IntArrayRef shape) {
  const auto root = [](double number) { return std::sqrt(number); };
  switch (values.kind) {
    case Initial::Kind::kFanIn:
      return uniform(1 / root(static_cast<double>(fan_in_of(shape))));
    case Initial::Kind::kFanOut:
      return normal(root(2.0 / static_cast<double>(fan_out_of(shape))));
    case Initial::Kind::kXavier:
      // A uniform variable in ±b has variance b²/3.
      return uniform(root(6.0 / static_cast<double>(fan_in_of(shape) + fan_out_of(shape))));
    default:
      return values;
  }
}

/// Returns a float32 leaf tensor that requires a gradient. The kinds by inputs and outputs use
/// those of a weight [O, I, ...]: the products of I, or of O, with the kernel's extents.
at::Tensor initial_parameter(const std::string& name, at::IntArrayRef shape, Initial values,
                             int64_t seed) {
  const Initial by = for_shape(values, shape);
  if (by.kind == Initial::Kind::kConstant)
    return at::full(shape, by.scale, at::kFloat).set_requires_grad(true);
  at::Tensor tensor = at::empty(shape, at::kFloat);
  // By name, not by order: a layer keeps its values when others are added.
  const CounterRandom random{seed, fnv1a64(name)};
  auto* data = tensor.mutable_data_ptr<float>();
  const bool is_normal = by.kind == Initial::Kind::kNormal;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    data[i] = static_cast<float>(
        by.scale * (is_normal ? normal_number(random, i) : 2 * random.uniform(i) - 1));
  return tensor.set_requires_grad(true);
}

}  // namespace

LayerParams::LayerParams(const std::string& name, at::IntArrayRef weight_shape,
                         const LayerParamsOptions& options, int64_t seed, LayerTable* table)
    : table_(table), index_(static_cast<int64_t>(table->layers.size())) {
  // The weight's index is that of the next parameter.
  table->layers.push_back(
      {.name = name, .weight_param = static_cast<int64_t>(table->params.size())});
  weight_ = add_parameter({.name = name + ".weight",
                           .shape = weight_shape.vec(),
                           .values = options.weight,
                           .prunable = true,
                           .decayed = true},
                          seed, table);
  if (!options.has_bias) return;
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in_of(weight_shape)));
  bias_O_ = add_parameter(
      {name + ".bias", {weight_shape[0]}, options.bias.value_or(uniform(bound))}, seed, table);
}

void LayerParams::uses_linear() {
  grad_in_place_ = std::make_shared<GradInPlace>();
  masked_ = std::make_shared<MaskedProducts>();
  const auto weight = static_cast<size_t>(table_->layers[static_cast<size_t>(index_)].weight_param);
  table_->params[weight].grad_in_place = grad_in_place_;
  // Captures shared pointers and the tensor, not `this`: layers are moved after their construction.
  table_->params[weight].follow_mask = [masked = masked_, weight_OI = weight_,
                                        table = table_](const uint8_t* bits) {
    const bool was_semi_sparse = masked->is_semi_sparse;
    *masked = {};
    if (bits != nullptr) {
      const int64_t num_rows = weight_OI.size(0), num_columns = weight_OI.size(1);
      // The kernels need contiguous float32 on the CPU.
      if (weight_OI.is_cpu() && weight_OI.scalar_type() == at::kFloat)
        masked->kept = KeptWeight::make(bits, num_rows, num_columns);
      masked->is_semi_sparse =
          may_be_semi_sparse(weight_OI) && is_semi_sparse(bits, num_rows, num_columns);
    }
    if (masked->is_semi_sparse != was_semi_sparse) ++table->num_semi_sparse_changes;
  };
}

Linear::Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs,
               const LayerParamsOptions& options, int64_t seed, LayerTable* table)
    : params_(name, {num_outputs, num_inputs}, options, seed, table) {
  params_.uses_linear();
}

at::Tensor Linear::operator()(const at::Tensor& inputs) const {
  const at::Tensor used = params_.input(inputs);
  const at::Tensor weight = params_.weight();
  const bool is_plain = weight.is_same(params_.plain_weight());
  // With a hook, the weight in use is another tensor, whose backward adds to the gradient.
  if (!is_plain) settle_grad(params_.plain_weight(), params_.grad_in_place());
  const auto product = [&](const at::Tensor& inputs_BI) {
    return linear(inputs_BI, weight, params_.bias(), params_.grad_in_place(),
                  is_plain ? params_.masked() : nullptr);
  };
  // The products take matrices: leading dimensions are joined for the call.
  if (used.dim() == 2) return product(used);
  std::vector<int64_t> shape = used.sizes().vec();
  shape.back() = weight.size(0);
  return product(used.flatten(0, -2)).view(shape);
}

NetworkLayer Linear::description() const {
  return {.kind = LayerKind::kLinear, .name = params_.name(), .has_bias = params_.bias().defined()};
}

Conv2d::Conv2d(const std::string& name, int64_t num_inputs, int64_t num_outputs,
               const Conv2dOptions& options, int64_t seed, LayerTable* table)
    : params_(name, {num_outputs, num_inputs / options.groups, options.kernel, options.kernel},
              options.params, seed, table),
      kernel_(options.kernel),
      stride_(options.stride),
      padding_(options.padding),
      groups_(options.groups) {}

at::Tensor Conv2d::operator()(const at::Tensor& inputs_BIHW) const {
  const at::Tensor inputs = params_.input(inputs_BIHW);
  return at::conv2d(inputs, params_.weight(), params_.bias(), {stride_, stride_},
                    {padding_, padding_}, {1, 1}, groups_);
}

NetworkLayer Conv2d::description() const {
  return {.kind = LayerKind::kConv2d,
          .name = params_.name(),
          .has_bias = params_.bias().defined(),
          .kernel_extent = kernel_,
          .stride = stride_,
          .padding = padding_,
          .groups = groups_};
}

namespace {

/// Unbiased variance: x n / (n - 1). The variance of a single value is 0.
at::Tensor unbiased(const at::Tensor& variance_C, double num_values) {
  return num_values > 1 ? variance_C * (num_values / (num_values - 1)) : variance_C;
}

double num_values_of(double num_samples, const at::Tensor& inputs_BCHW) {
  return num_samples * static_cast<double>(inputs_BCHW.size(2) * inputs_BCHW.size(3));
}

/// Tensors [C] for one call of ATen's normalisation.
struct NormTensors {
  at::Tensor gamma_C, beta_C, mean_C, variance_C;
};

/// Normalises with ATen. In training, momentum 1 makes mean_C and variance_C the batch's own
/// (unbiased): ATen's moving average is not used. On a GPU, PyTorch may choose cuDNN, but never for
/// a single value per channel.
at::Tensor normalise(const at::Tensor& inputs_BCHW, const NormTensors& by, bool training,
                     bool is_single = false) {
  const double momentum = training ? 1 : 0;
  if (inputs_BCHW.is_cuda() && !is_single)
    return at::batch_norm(inputs_BCHW, by.gamma_C, by.beta_C, by.mean_C, by.variance_C, training,
                          momentum, BatchNormTable::kEpsilon,
                          at::globalContext().userEnabledCuDNN());
  return std::get<0>(at::native_batch_norm(inputs_BCHW, by.gamma_C, by.beta_C, by.mean_C,
                                           by.variance_C, training, momentum,
                                           BatchNormTable::kEpsilon));
}

/// Returns two zero tensors [C] in one allocation, each with the alignment of its own allocation.
std::pair<at::Tensor, at::Tensor> two_zeros(int64_t num_channels, at::Device device) {
  // In floats: 256 bytes, the alignment that CUDA guarantees.
  constexpr int64_t kAligned = 64;
  const int64_t second = (num_channels + kAligned - 1) / kAligned * kAligned;
  const at::Tensor both = at::zeros({second + num_channels}, at::TensorOptions(device));
  return {both.narrow(0, 0, num_channels), both.narrow(0, second, num_channels)};
}

}  // namespace

BatchNorm::BatchNorm(const std::string& name, int64_t num_channels, NormNames names,
                     LayerTable* table)
    : name_(name),
      names_(names),
      norms_(table->norms),
      state_(table->norms.add(num_channels)),
      gamma_C_(at::ones({num_channels}).set_requires_grad(true)),
      beta_C_(at::zeros({num_channels}).set_requires_grad(true)) {
  check(!table->layers.empty(), "batch normalisation follows a layer");
  table->layers.back().has_batch_norm = true;
  const auto suffixes = norm_suffixes(names);
  table->params.push_back({.name = name + suffixes[0], .tensor = gamma_C_});
  table->params.push_back({.name = name + suffixes[1], .tensor = beta_C_});
  table->buffers.push_back({name + suffixes[2], state_.moving_mean_C});
  table->buffers.push_back({name + suffixes[3], state_.moving_variance_C});
  table->buffers.push_back({name + suffixes[4], state_.num_batches});
}

at::Tensor BatchNorm::operator()(const at::Tensor& inputs_BCHW) const {
  if (goes_by_moving_statistics()) return by_moving_statistics(inputs_BCHW);
  if (norms_.sum_over_ranks()) return by_samples_of_all_ranks(inputs_BCHW);
  return by_own_samples(inputs_BCHW);
}

bool BatchNorm::goes_by_moving_statistics() const {
  const bool is_trained = gamma_C_.requires_grad() || beta_C_.requires_grad();
  return !norms_.is_training() || norms_.is_frozen() ||
         (norms_.is_frozen_with_params() && !is_trained);
}

NetworkLayer BatchNorm::description() const {
  return {.kind = LayerKind::kBatchNorm,
          .name = name_,
          .epsilon = BatchNormTable::kEpsilon,
          .norm_names = names_};
}

at::Tensor BatchNorm::by_moving_statistics(const at::Tensor& inputs_BCHW) const {
  if (inputs_BCHW.numel() == 0)  // ATen's backward would divide by zero values
    return inputs_BCHW * gamma_C_.view({1, -1, 1, 1}) + beta_C_.view({1, -1, 1, 1});
  return normalise(inputs_BCHW, {gamma_C_, beta_C_, state_.moving_mean_C, state_.moving_variance_C},
                   /*training=*/false);
}

at::Tensor BatchNorm::by_own_samples(const at::Tensor& inputs_BCHW) const {
  const auto num_samples = static_cast<double>(inputs_BCHW.size(0));
  // A rank without samples still runs forward: its parameters need a gradient, of zeros.
  if (num_samples == 0) return by_moving_statistics(inputs_BCHW);
  const auto [mean_C, variance_C] = two_zeros(gamma_C_.numel(), state_.moving_mean_C.device());
  const bool is_single = num_values_of(num_samples, inputs_BCHW) == 1;  // ATen would divide by 0
  at::Tensor outputs_BCHW = normalise(inputs_BCHW, {gamma_C_, beta_C_, mean_C, variance_C},
                                      /*training=*/true, is_single);
  keep({num_samples, mean_C, is_single ? at::zeros_like(mean_C) : variance_C});
  return outputs_BCHW;
}

at::Tensor BatchNorm::by_samples_of_all_ranks(const at::Tensor& inputs_BCHW) const {
  const GlobalStatistics global = global_statistics(inputs_BCHW, norms_.sum_over_ranks());
  // No rank has samples: nothing to normalise by, and nothing to keep.
  if (global.num_samples == 0) return by_moving_statistics(inputs_BCHW);
  const double num_values = num_values_of(global.num_samples, inputs_BCHW);
  keep({global.num_samples, global.mean_C, unbiased(global.variance_C, num_values)});
  return normalise_globally(inputs_BCHW, gamma_C_, beta_C_, global, num_values,
                            BatchNormTable::kEpsilon, norms_.sum_over_ranks());
}

// Two implementations of one random mask. Both must follow CounterRandom bit by bit: runs on CPUs
// and on GPUs drop the same elements.
constexpr int64_t kNumbersOfAWord = 4;  // 16 bits each

int64_t words_of(int64_t num_numbers) {
  return (num_numbers + kNumbersOfAWord - 1) / kNumbersOfAWord;
}

static void draw_sample(const MaskDraw& draw, uint64_t first_word, int64_t num_numbers,
                        float* values_N) {
  const auto num_kept = static_cast<uint64_t>(draw.num_kept);
  const auto value_of = [&](uint64_t bits, int64_t place) {
    return ((bits >> (16 * place)) & 0xffffU) < num_kept ? draw.kept_value : 0.0F;
  };
  const int64_t num_whole = num_numbers / kNumbersOfAWord;
  for (int64_t word = 0; word < num_whole; ++word) {
    const uint64_t bits = draw.random.bits(first_word + static_cast<uint64_t>(word));
    float* values = values_N + word * kNumbersOfAWord;
    for (int64_t place = 0; place < kNumbersOfAWord; ++place) values[place] = value_of(bits, place);
  }
  const uint64_t rest = draw.random.bits(first_word + static_cast<uint64_t>(num_whole));
  for (int64_t n = num_whole * kNumbersOfAWord; n < num_numbers; ++n)
    values_N[n] = value_of(rest, n % kNumbersOfAWord);
}

/// Logical shift: masks off the sign bits that an arithmetic shift inserts.
static at::Tensor shifted_right(const at::Tensor& bits, int64_t by) {
  return bits.bitwise_right_shift(at::Scalar(by)).bitwise_and_((int64_t{1} << (64 - by)) - 1);
}

/// Applies CounterRandom::mix to each number, in place.
static void mix(const at::Tensor& bits) {
  bits.bitwise_xor_(shifted_right(bits, 30)).mul_(static_cast<int64_t>(CounterRandom::kMix1));
  bits.bitwise_xor_(shifted_right(bits, 27)).mul_(static_cast<int64_t>(CounterRandom::kMix2));
  bits.bitwise_xor_(shifted_right(bits, 31));
}

at::Tensor drawn_by_loop(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers) {
  at::Tensor mask_BN = at::empty({num_samples, num_numbers}, at::kFloat);
  auto* values = mask_BN.mutable_data_ptr<float>();
  const int64_t num_words = words_of(num_numbers);
  // Each sample has its own counters, so threads need no shared state.
  at::parallel_for(0, num_samples, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample)
      draw_sample(draw, static_cast<uint64_t>((draw.first_sample + sample) * num_words),
                  num_numbers, values + sample * num_numbers);
  });
  return mask_BN;
}

at::Tensor drawn_by_tensors(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers,
                            at::Device device) {
  // Word i of the generator is mix((i + 1) * kGolden + key), see CounterRandom.
  const int64_t num_words = words_of(num_numbers), first = draw.first_sample * num_words + 1;
  const at::Tensor bits_W =
      at::arange(first, first + num_samples * num_words, at::TensorOptions(device).dtype(at::kLong))
          .mul_(static_cast<int64_t>(CounterRandom::kGolden))
          .add_(static_cast<int64_t>(draw.random.key()));
  mix(bits_W);
  // The view as int16 splits each 64-bit word into its four numbers, lowest bits first.
  const at::Tensor kept_BN = bits_W.view(at::kShort)
                                 .view({num_samples, num_words * kNumbersOfAWord})
                                 .narrow(1, 0, num_numbers)
                                 .to(at::kInt)
                                 .bitwise_and_(0xffff)
                                 .lt(draw.num_kept);
  return kept_BN.to(at::kFloat).mul_(draw.kept_value);
}

Dropout::Dropout(const std::string& name, double share, int64_t seed, const LayerTable* table)
    : table_(table),
      seed_(seed),
      name_hash_(static_cast<int64_t>(fnv1a64(name))),
      num_kept_(std::max<int64_t>(1, std::llround((1 - share) * kOf))) {
  check(share >= 0 && share < 1, "a dropout probability is in [0, 1)");
  if (num_kept_ < kOf) (void)table->pass();  // marks the pass as read before the first one
}

at::Tensor Dropout::operator()(const at::Tensor& inputs_BX) const {
  return is_on() ? inputs_BX * mask(inputs_BX) : inputs_BX;
}

at::Tensor Dropout::mask(const at::Tensor& inputs_BX) const {
  const at::NoGradGuard no_grad;
  if (inputs_BX.numel() == 0) return at::ones_like(inputs_BX);
  const ForwardPass& pass = table_->pass();
  const MaskDraw draw{.random = CounterRandom{seed_, name_hash_, pass.step},
                      .first_sample = pass.first_sample,
                      .num_kept = num_kept_,
                      .kept_value = static_cast<float>(kOf) / static_cast<float>(num_kept_)};
  const int64_t num_samples = inputs_BX.size(0), num_numbers = inputs_BX.numel() / num_samples;
  const at::Tensor mask_BN =
      inputs_BX.is_cpu() ? drawn_by_loop(draw, num_samples, num_numbers)
                         : drawn_by_tensors(draw, num_samples, num_numbers, inputs_BX.device());
  return mask_BN.to(inputs_BX.scalar_type()).view(inputs_BX.sizes());
}

/// Computes scaled_dot_product_attention, with Lockstep's dropout between softmax and sum.
static at::Tensor attention_with_dropout(const at::Tensor& q_BATD, const at::Tensor& k_BATD,
                                         const at::Tensor& v_BATD, bool causal,
                                         const Dropout& dropout) {
  const int64_t num_tokens = q_BATD.size(2);
  // Scales the queries (T × D elements) instead of the scores (T × T).
  at::Tensor scores_BATT = at::matmul(q_BATD * (1 / std::sqrt(static_cast<double>(q_BATD.size(3)))),
                                      k_BATD.transpose(-2, -1));
  // -inf before the softmax gives later tokens a weight of 0.
  if (causal)
    scores_BATT =
        scores_BATT + at::full({num_tokens, num_tokens}, -std::numeric_limits<double>::infinity(),
                               scores_BATT.options())
                          .triu_(1);
  return at::matmul(dropout(at::softmax(scores_BATT, -1)).to(v_BATD.scalar_type()), v_BATD);
}

at::Tensor add_parameter(const FreeParameter& parameter, int64_t seed, LayerTable* table) {
  table->params.push_back(
      {.name = parameter.name,
       .tensor = initial_parameter(parameter.name, parameter.shape, parameter.values, seed),
       .prunable = parameter.prunable,
       .decayed = parameter.decayed});
  return table->params.back().tensor;
}

LayerNorm::LayerNorm(const std::string& name, int64_t width, double epsilon, bool has_bias,
                     LayerTable* table)
    : name_(name),
      weight_W_(add_parameter({name + ".weight", {width}, constant(1)}, 0, table)),
      epsilon_(epsilon) {
  if (has_bias) bias_W_ = add_parameter({name + ".bias", {width}, constant(0)}, 0, table);
}

at::Tensor LayerNorm::operator()(const at::Tensor& inputs) const {
  return at::layer_norm(inputs, weight_W_.sizes(), weight_W_, bias_W_, epsilon_);
}

NetworkLayer LayerNorm::description() const {
  return {.kind = LayerKind::kLayerNorm,
          .name = name_,
          .has_bias = bias_W_.defined(),
          .epsilon = epsilon_};
}

Embedding::Embedding(const std::string& name, int64_t num_rows, int64_t width, Initial values,
                     int64_t seed, LayerTable* table)
    : name_(name),
      weight_RW_(add_parameter(
          {.name = name + ".weight", .shape = {num_rows, width}, .values = values, .decayed = true},
          seed, table)) {}

at::Tensor Embedding::operator()(const at::Tensor& indices) const {
  return at::embedding(weight_RW_, indices);
}

at::Tensor attention(const at::Tensor& qkv_BTX, int64_t num_heads, bool causal,
                     const Dropout& dropout) {
  const int64_t num_tokens = qkv_BTX.size(1), width = qkv_BTX.size(2) / 3;
  const std::vector<at::Tensor> parts = qkv_BTX.split(width, 2);
  const auto by_head = [&](const at::Tensor& part_BTW) {
    return part_BTW.view({qkv_BTX.size(0), num_tokens, num_heads, width / num_heads})
        .transpose(1, 2);
  };
  const at::Tensor q_BATD = by_head(parts[0]), k_BATD = by_head(parts[1]),
                   v_BATD = by_head(parts[2]);
  // ATen's fused attention has its own dropout, whose random numbers depend on the device.
  const at::Tensor sums_BATD =
      dropout.is_on() ? attention_with_dropout(q_BATD, k_BATD, v_BATD, causal, dropout)
                      : at::scaled_dot_product_attention(q_BATD, k_BATD, v_BATD, {}, 0.0, causal);
  return sums_BATD.transpose(1, 2).reshape({qkv_BTX.size(0), num_tokens, width});
}

}  // namespace lockstep::model
