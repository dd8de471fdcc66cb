// Applies rules to regions of flat buffers. Own kernels update float32 on the CPU, ATen's
// operations all else. make_optimizer() chooses.
//
// A masked update packs a block's kept values and gradients, applies the rule there, and writes the
// results back. Slots stay packed for the whole region, so begin_K finds a chunk's slots. All paths
// compute each element alone: its bits do not depend on the packing.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "optim/optimizer.h"
#include "optim/rules.h"

namespace lockstep::optim {
constexpr int kItemBytes = sizeof(float);

PackedMask::PackedMask(std::span<const uint8_t> buffer_bits, int64_t begin_E, int64_t num_elements)
    : num_elements_(num_elements), bits_(static_cast<size_t>(num_mask_bytes(num_elements))) {
  // Shifts the bits so that the region begins at bit 0, which all kernels expect.
  copy_bits(buffer_bits.data(), begin_E, num_elements, bits_.data(), 0);
  for (int64_t begin = 0; begin < num_elements; begin += kChunkElements)
    // Counted once here, so that threads can start at any chunk.
    begins_K_.push_back(
        begins_K_.back() +
        count_kept(bits_.data() + begin / 8, std::min(kChunkElements, num_elements - begin)));
}

PackedMask::Chunk PackedMask::chunk(int64_t index) const {
  const int64_t begin_R = index * kChunkElements;
  const auto chunk = static_cast<size_t>(index);
  return {.begin_R = begin_R,
          .num_elements = std::min(kChunkElements, num_elements_ - begin_R),
          .begin_K = begins_K_[chunk],
          .num_kept = begins_K_[chunk + 1] - begins_K_[chunk],
          .bits = bits_.data() + begin_R / 8};
}

int64_t PackedMask::num_kept_before(int64_t at_R) const {
  // Chunks before this one are counted already; only a part of this chunk remains.
  const int64_t index = at_R / kChunkElements, begin_R = index * kChunkElements;
  return begins_K_[static_cast<size_t>(index)] + cut(begin_R, at_R - begin_R).num_kept();
}

at::Tensor PackedMask::pack(const at::Tensor& dense_R) const {
  check(dense_R.numel() == num_elements_, "a mask packs its own region");
  at::Tensor packed_K = at::empty({num_kept()}, dense_R.options());
  pack_kept(dense_R.const_data_ptr(), bits_.data(), num_elements_, kItemBytes,
            packed_K.mutable_data_ptr());
  return packed_K;
}

void PackedMask::unpack(const at::Tensor& packed_K, const at::Tensor& dense_R) const {
  check(dense_R.numel() == num_elements_ && packed_K.numel() == num_kept(),
        "a mask unpacks its own region");
  unpack_kept(packed_K.const_data_ptr(), bits_.data(), num_elements_, kItemBytes,
              dense_R.mutable_data_ptr());
}

void PackedMask::zero_pruned(const at::Tensor& dense_R) const {
  check(dense_R.numel() == num_elements_, "a mask acts on its own region");
  lockstep::zero_pruned(dense_R.mutable_data_ptr(), bits_.data(), num_elements_, kItemBytes);
}

/// Updates a chunk in blocks: packs values and gradients, applies the rule, writes results back.
static void walk(const PackedMask::Chunk& chunk, const RegionData& data, SimdPath path,
                 UpdateBlock update) {
  const UpdateKernels& kernels = update_kernels(path);
  PackedBlock block;
  int64_t begin_K = chunk.begin_K;
  for (int64_t first = 0; first < chunk.num_elements; first += kBlock) {
    const int64_t num_elements = std::min(kBlock, chunk.num_elements - first);
    const uint8_t* bits = chunk.bits + first / 8;
    float* values = data.values_R + chunk.begin_R + first;
    float* grads = data.grads_R + chunk.begin_R + first;
    kernels.pack(values, grads, bits, num_elements, block);
    if (block.num_kept == 0) continue;
    update(block.num_kept, block.values.data(), block.grads.data(), begin_K);
    kernels.put_kept(block, bits, num_elements, values);
    begin_K += block.num_kept;
  }
}

/// Updates a chunk with few kept elements. Reads and writes only their own cache lines.
static void walk_sparse(const PackedMask::Chunk& chunk, const RegionData& data,
                        UpdateBlock update) {
  std::array<uint32_t, PackedMask::kChunkElements / kItemsOfOneKept + kPlaceSlack> places;
  const int64_t num_kept = find_kept(chunk.bits, chunk.num_elements, places.data());
  float* const values = data.values_R + chunk.begin_R;
  float* const grads = data.grads_R + chunk.begin_R;
  PackedBlock block;
  for (int64_t done = 0; done < num_kept; done += block.num_kept) {
    block.num_kept = std::min(kBlock, num_kept - done);
    const uint32_t* const here = places.data() + done;
    for (int64_t i = 0; i < block.num_kept; ++i) {
      block.values[i] = values[here[i]];
      block.grads[i] = grads[here[i]];
    }
    update(block.num_kept, block.values.data(), block.grads.data(), chunk.begin_K + done);
    for (int64_t i = 0; i < block.num_kept; ++i) values[here[i]] = block.values[i];
  }
}

bool takes_kernels(const FlatBuffer& buffer) {
  return buffer.values_E.is_cpu() && buffer.values_E.scalar_type() == at::kFloat;
}

RegionData data_of(const FlatBuffer& buffer, const ParamShard& region) {
  return {.num_elements = region.num_elements(),
          .values_R = buffer.values_E.mutable_data_ptr<float>() + region.begin_E,
          .grads_R = buffer.grads_E.mutable_data_ptr<float>() + region.begin_E};
}

SlotData data_of(const std::vector<at::Tensor>& slots) {
  const auto floats = [&](size_t slot) {
    return slot < slots.size() ? slots[slot].mutable_data_ptr<float>() : nullptr;
  };
  return {.first = floats(0), .second = floats(1)};
}

void update_dense(const RegionData& data, UpdateBlock update) {
  at::parallel_for(0, data.num_elements, kGrain, [&](int64_t begin, int64_t end) {
    update(end - begin, data.values_R + begin, data.grads_R + begin, begin);
  });
}

void update_kept(const PackedMask& kept, const RegionData& data, UpdateBlock update,
                 SimdPath path) {
  // Chunks are independent: kept elements before each chunk were counted once.
  at::parallel_for(0, kept.num_chunks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const PackedMask::Chunk chunk = kept.chunk(index);
      if (is_sparse(chunk.num_kept, chunk.num_elements))
        walk_sparse(chunk, data, update);
      else
        walk(chunk, data, path, update);
    }
  });
}

/// Updates a region whose slots are bytes: block by block, as numbers in the first-level cache.
template <typename Rule>
static void update_blocks(const StateBlocks& blocks, const OptimizerState& state,
                          const RegionData& data, const SlotPart& part,
                          const rules::WeightDecay<float>& decay, const Rule& rule) {
  const UpdateKernels& kernels = update_kernels(fastest_simd_path());
  const int64_t first_block = blocks.before(part.region.begin_E);
  const int64_t num_blocks = blocks.before(part.region.end_E) - first_block;
  std::array<uint8_t*, 2> codes{};
  std::array<float*, 2> scales{};
  for (size_t slot = 0; slot < part.slots.size(); ++slot) {
    codes[slot] = part.slots[slot].mutable_data_ptr<uint8_t>();
    scales[slot] = part.scales[slot].mutable_data_ptr<float>();
  }
  at::parallel_for(0, num_blocks, kGrain / kStateBlock, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<std::array<float, kStateBlock>, 2> slots;
    for (int64_t i = begin; i < end; ++i) {
      const StateBlocks::Block block = blocks.at(first_block + i);
      const int64_t at_R = block.begin_E - part.region.begin_E;
      for (size_t slot = 0; slot < part.slots.size(); ++slot)
        kernels.dequantize(block.num_elements, codes[slot] + at_R, scales[slot][i],
                           state.is_positive(slot), slots[slot].data());
      kernels.of<Rule>()(block.num_elements, data.values_R + at_R, data.grads_R + at_R,
                         slots[0].data(), slots[1].data(), decay, rule);
      for (size_t slot = 0; slot < part.slots.size(); ++slot)
        scales[slot][i] = kernels.quantize(block.num_elements, slots[slot].data(),
                                           state.is_positive(slot), codes[slot] + at_R);
    }
  });
}

/// True if the rule counts the updates of each parameter.
template <typename Rule>
static bool has_own_counts([[maybe_unused]] const OptimizerOptions& options) {
  if constexpr (requires { Rule::counts_own_updates(options); })
    return Rule::counts_own_updates(options);
  else
    return false;
}

/// Optimizer with an elementwise rule (optim/rules.h): own kernels for float32 on the CPU,
/// otherwise the same rule in ATen's operations.
template <template <typename> class Rule>
class Elementwise : public Optimizer {
 public:
  Elementwise(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
              const ParamTable& params)
      : Optimizer(options, buffers, params, has_own_counts<Rule<float>>(options)) {
    // Matrices have a moment; NorMuon stores the rows' second moments too.
    for (const char* slot : Rule<float>::kSlots)
      add_slot(slot, slot == Rule<float>::kSlots.front() || options.normuon_beta2.has_value());
    if (options.state_dtype == "int8") slots().quantize();
  }

 protected:
  /// Updates tensors of [R] elements each. The default applies the rule in ATen's operations, each
  /// of which creates a tensor. An override may postpone the update to end_step().
  virtual void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                              std::vector<at::Tensor>& slots, const GroupRates& rates) {
    const rules::WeightDecay<double> decay(options(), rates);
    slots.resize(2);
    at::Tensor first = slots[0], second = slots[1];
    const at::Tensor result =
        rules::apply(Rule<double>(options(), rates, num_updates()),
                     decay.minus_share == 0 ? values : values.add(values, decay.minus_share),
                     decay.l2 == 0 ? grads : grads.add(values, decay.l2), &first, &second, 0);
    slots.resize(Rule<float>::kSlots.size());
    if (!slots.empty()) slots[0].copy_(first);
    if (slots.size() > 1) slots[1].copy_(second);
    values.copy_(result);
  }

  void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) override {
    if constexpr (requires { Rule<float>::kDividesByRate; })
      if (rates.learning_rate == 0) return;
    if (takes_kernels(buffer)) {
      const rules::WeightDecay<float> decay(options(), rates);
      const Rule<float> rule(options(), rates, num_updates());
      const RegionData data = data_of(buffer, part->region);
      if (part->is_quantized())
        return update_blocks(slots().blocks(part->region.buffer), slots(), data, *part, decay,
                             rule);
      return update_region(part->kept, data, data_of(part->slots), decay, rule);
    }
    update_tensors(part->of(buffer.values_E), part->of(buffer.grads_E), part->slots, rates);
  }
};

// Rules with a fused ATen kernel, which is used if no own kernel applies.

/// Batch of one fused call: tensors of one type with equal rates. `slots`: by slot, then like the
/// values.
struct FusedBatch {
  GroupRates rates;
  int64_t num_updates = 0;  ///< of these tensors, including this one
  std::vector<at::Tensor> values, grads;
  std::vector<std::vector<at::Tensor>> slots;
  std::optional<at::Tensor> found_inf;  ///< see Optimizer::step()
};

/// Collects a step's tensors and updates them together. On a GPU, a kernel per flat buffer would
/// leave most of it idle.
template <template <typename> class Rule>
class Fused : public Elementwise<Rule> {
  using Elementwise<Rule>::Elementwise;

 public:
  bool takes_found_inf() const override {
    return std::ranges::none_of(this->buffers(), [](const FlatBuffer& buffer) {
      return !buffer.frozen && takes_kernels(buffer);
    });
  }

 protected:
  void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                      std::vector<at::Tensor>& slots, const GroupRates& rates) final {
    FusedBatch& batch = batch_of(rates, values.scalar_type());
    batch.values.push_back(values);
    batch.grads.push_back(grads);
    for (size_t slot = 0; slot < slots.size(); ++slot) batch.slots[slot].push_back(slots[slot]);
  }

  void end_step() override {
    for (const FusedBatch& batch : std::exchange(batches_, {})) update_batch(batch);
  }

  virtual void update_batch(const FusedBatch& batch) = 0;

 private:
  FusedBatch& batch_of(const GroupRates& rates, at::ScalarType type) {
    for (FusedBatch& batch : batches_)
      if (batch.rates == rates && batch.num_updates == this->num_updates() &&
          batch.values.front().scalar_type() == type)
        return batch;
    batches_.push_back({.rates = rates,
                        .num_updates = this->num_updates(),
                        .slots = {},
                        .found_inf = std::nullopt});
    if (this->found_inf().defined()) batches_.back().found_inf = this->found_inf();
    batches_.back().slots.resize(Rule<float>::kSlots.size());
    return batches_.back();
  }

  std::vector<FusedBatch> batches_;  ///< collected in this step
};

// Calls of ATen's fused kernels. found_inf is a tensor on the device: the kernel skips the update
// if it is 1, without a wait of the host.

static void decay_values(const FusedBatch& batch, const rules::WeightDecay<double>& decay) {
  if (decay.minus_share == 0) return;
  // The skip happens on the device, so the factor becomes 1 there if found_inf is set.
  if (!batch.found_inf) return at::_foreach_mul_(batch.values, 1 + decay.minus_share);
  const at::Tensor factor = at::full({}, 1 + decay.minus_share, batch.values.front().options());
  at::_foreach_mul_(batch.values, factor.masked_fill_(batch.found_inf->squeeze().ne(0), 1));
}

template <template <typename> class Rule>
class FusedSgd final : public Fused<Rule> {
  using Fused<Rule>::Fused;
  void update_batch(const FusedBatch& batch) override {
    const rules::WeightDecay<double> decay(this->options(), batch.rates);
    decay_values(batch, decay);
    const bool has_momentum = !batch.slots.empty();
    at::_fused_sgd_(
        batch.values, batch.grads, has_momentum ? at::TensorList(batch.slots[0]) : at::TensorList(),
        decay.l2, has_momentum ? this->options().momentum : 0, batch.rates.learning_rate,
        /*dampening=*/0.0, has_momentum && this->options().nesterov,
        /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{}, batch.found_inf);
  }
};

/// Fused kernel for adam and adamw.
class FusedAdam : public Fused<rules::Adam> {
  using Fused::Fused;
  void update_batch(const FusedBatch& batch) override {
    const rules::WeightDecay<double> decay(options(), batch.rates);
    const rules::Adam<double> rule(options(), batch.rates, batch.num_updates);
    decay_values(batch, decay);
    // ATen takes the update number as a tensor for each parameter.
    const at::Tensor update_number = at::full({}, static_cast<double>(batch.num_updates),
                                              batch.values.front().options().dtype(at::kFloat));
    const std::vector<at::Tensor> update_numbers(batch.values.size(), update_number);
    at::_fused_adam_(batch.values, batch.grads, batch.slots[0], batch.slots[1],
                     /*max_exp_avg_sqs=*/at::TensorList(), update_numbers,
                     batch.rates.learning_rate, options().adam_beta1, options().adam_beta2,
                     decay.l2, rule.epsilon,
                     /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, batch.found_inf);
  }
};

/// Returns a matrix with the singular vectors of `matrix_MN`, and singular values near 1: a quintic
/// Newton-Schulz iteration in bfloat16. Source: Jordan et al. 2024, in the form of
/// torch.optim.Muon, whose order of operations and so bits it has.
static at::Tensor orthogonalized(const at::Tensor& matrix_MN, int64_t num_steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEpsilon = 1e-7;
  const bool is_tall = matrix_MN.size(0) > matrix_MN.size(1);
  at::Tensor x = matrix_MN.to(at::kBFloat16);
  if (is_tall) x = x.t();
  x = x.div(x.norm().clamp_min(kEpsilon));  // no singular value is above 1
  for (int64_t step = 0; step < num_steps; ++step) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return is_tall ? x.t() : x;
}

/// Muon for matrices: m = momentum * m + (1 - momentum) g; w -= rate * f(shape) * O, where O is
/// orthogonalized(m), with Nesterov that of (1 - momentum) g + momentum * m. AdamW for all else.
/// Weight decay is decoupled. Sources: Jordan et al. 2024, in the form of torch.optim.Muon;
/// normuon_beta2: Li et al. 2025. Pruned weights stay 0.
class Muon final : public FusedAdam {
 public:
  Muon(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params)
      : FusedAdam(options, buffers, params),
        adamw_share_(options.adamw_learning_rate.value_or(options.learning_rate) /
                     options.learning_rate) {
    for (const Param& param : params)
      check(!param.is_matrix || param.tensor.scalar_type() == at::kFloat, "float32 matrices");
  }

  void set_kept(size_t buffer, std::span<const uint8_t> bits) override {
    const FlatBuffer& flat = buffers().at(buffer);
    if (flat.is_matrix && !flat.frozen)
      masks_[flat.slices.front().param] =
          bits.empty() ? PackedMask() : PackedMask(bits, 0, flat.values_E.numel());
    Optimizer::set_kept(buffer, bits);
  }

  bool takes_found_inf() const override { return false; }

 protected:
  void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) override {
    if (buffer.is_matrix) return update_matrix(buffer, *part, rates);
    FusedAdam::update(
        buffer, part,
        {.learning_rate = rates.learning_rate * adamw_share_, .weight_decay = rates.weight_decay});
  }

 private:
  void update_matrix(const FlatBuffer& buffer, const SlotPart& stored, const GroupRates& rates) {
    check(stored.region.num_elements() == buffer.values_E.numel(),
          "a matrix is updated as a whole");
    const SlotPart part = slots().as_floats(stored);
    const int64_t param = buffer.slices.front().param;
    const int64_t num_rows = params()[static_cast<size_t>(param)].tensor.size(0);
    const auto as_matrix = [&](const at::Tensor& flat_E) { return flat_E.view({num_rows, -1}); };
    const at::Tensor values = as_matrix(buffer.values_E), grads = as_matrix(buffer.grads_E);
    const at::Tensor moment = as_matrix(part.slots[0]);
    moment.lerp_(grads, 1 - options().momentum);
    const at::Tensor direction =
        options().nesterov ? grads.lerp(moment, options().momentum) : moment;
    at::Tensor change = orthogonalized(direction, options().ns_steps);
    double rate = rates.learning_rate * factor_of(values);
    const auto mask = masks_.find(param);
    const bool is_pruned = mask != masks_.end() && !mask->second.empty();
    if (options().normuon_beta2) {
      change = with_even_rows(change.to(values.scalar_type()), as_matrix(part.slots[1]));
      rate = rates.learning_rate * 0.2 * std::sqrt(static_cast<double>(values.numel())) /
             std::max(change.norm().item<double>(), 1e-12);
      if (is_pruned) part.slots[1].copy_(without_pruned(part.slots[1], mask->second));
    }
    if (is_pruned) change = without_pruned(change.to(values.scalar_type()), mask->second);
    values.mul_(1 - std::min(1.0, rates.learning_rate * rates.weight_decay));
    values.add_(change, -rate);
    slots().put_back(part, stored);
  }

  double factor_of(const at::Tensor& matrix) const {
    const auto num_rows = static_cast<double>(matrix.size(0));
    const auto num_columns = static_cast<double>(matrix.size(1));
    if (options().adjust_lr_fn == "match_rms_adamw")
      return 0.2 * std::sqrt(std::max(num_rows, num_columns));
    return std::sqrt(std::max(1.0, num_rows / num_columns));
  }

  /// Divides each row by the root of its second moment. The slot has it in each kept element.
  at::Tensor with_even_rows(const at::Tensor& change, const at::Tensor& slot) const {
    const at::Tensor moments =
        slot.amax(1, /*keepdim=*/true)
            .lerp_(change.square().mean(1, /*keepdim=*/true), 1 - *options().normuon_beta2);
    slot.copy_(moments.expand_as(slot));
    return change / (moments.sqrt() + 1e-8);
  }

  /// Zeroes pruned elements. The result may be the same memory.
  static at::Tensor without_pruned(const at::Tensor& change, const PackedMask& kept) {
    const at::Tensor there = change.cpu().contiguous();
    kept.zero_pruned(there.view(-1));
    return there.to(change.device());
  }

  const double adamw_share_;             ///< AdamW's rate by that of matrices
  std::map<int64_t, PackedMask> masks_;  ///< by parameter
};

using Make = std::unique_ptr<Optimizer> (*)(const OptimizerOptions&, std::vector<FlatBuffer>&,
                                            const ParamTable&);

template <typename Kind>
static std::unique_ptr<Optimizer> make(const OptimizerOptions& options,
                                       std::vector<FlatBuffer>& buffers, const ParamTable& params) {
  return std::make_unique<Kind>(options, buffers, params);
}

/// Returns the factory of a type. Some values select a simpler rule.
static Make maker_of(const OptimizerOptions& options) {
  // Without momentum no slot is needed.
  if (options.type == "momentum" && options.momentum == 0) return make<FusedSgd<rules::Sgd>>;
  // A square root instead of pow(): faster, and vectorised.
  if (options.type == "ftrl" && options.ftrl_learning_rate_power == -0.5)
    return make<Elementwise<rules::FtrlOfRoot>>;
  static const std::map<std::string, Make> makers{{"sgd", make<FusedSgd<rules::Sgd>>},
                                                  {"momentum", make<FusedSgd<rules::Momentum>>},
                                                  {"adam", make<FusedAdam>},
                                                  {"adamw", make<FusedAdam>},
                                                  {"adadelta", make<Elementwise<rules::Adadelta>>},
                                                  {"adagrad", make<Elementwise<rules::Adagrad>>},
                                                  {"ftrl", make<Elementwise<rules::Ftrl>>},
                                                  {"rmsprop", make<Elementwise<rules::RmsProp>>},
                                                  {"lion", make<Elementwise<rules::Lion>>},
                                                  {"muon", make<Muon>}};
  const auto found = makers.find(options.type);
  check(found != makers.end(), "the reader accepts only known optimizers");
  return found->second;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params) {
  if (options.state_dtype != "float32" && !std::ranges::all_of(buffers, takes_kernels))
    throw Error(ExitCode::kConfig, "optimizer",
                fmt::format("optimizer.state_dtype: {} needs float32 parameters on CPUs: set "
                            "run.device: cpu, or state_dtype: float32",
                            options.state_dtype));
  return maker_of(options)(options, buffers, params);
}

}  // namespace lockstep::optim

// Operations of the rules on whole tensors. Each creates a tensor, which is why float32 on the CPU
// has kernels instead.
namespace lockstep::optim::rules {

at::Tensor multiply_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return c + a * b;
}
at::Tensor multiply_add(const at::Tensor& a, double b, const at::Tensor& c) {
  return at::add(c, a, b);
}
at::Tensor root(const at::Tensor& x) { return at::sqrt(x); }
at::Tensor power(const at::Tensor& x, double exponent) { return at::pow(x, exponent); }
at::Tensor sign_of(const at::Tensor& x) { return at::sign(x); }
at::Tensor clamp_min(const at::Tensor& x, double bound) { return at::clamp_min(x, bound); }
at::Tensor clamp_max(const at::Tensor& x, double bound) { return at::clamp_max(x, bound); }

}  // namespace lockstep::optim::rules
