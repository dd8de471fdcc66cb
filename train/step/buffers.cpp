// Buffers that the forward pass changes. For batch normalisation, forward passes only collect sums;
// end_step() applies them once the update is known to count.
#include "train/step/buffers.h"

#include <map>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/tensors/tensor_memory.h"
#include "dist/communicator.h"
#include "dist/reducer/buckets.h"
#include "train/step/training_pass.h"

namespace lockstep::train {

optim::StepRates rates_at(int64_t step, const optim::OptimizerOptions& options,
                          const recal::Timeline& timeline, int64_t total_steps) {
  optim::StepRates rates = optim::initial_rates(options);
  rates[kWeightGroup].weight_decay = optim::weight_decay_at(options, step, total_steps);
  const double own_rate = optim::decayed_rate(options.decay, options.learning_rate, step,
                                              timeline.steps_per_epoch(), total_steps);
  for (int group = 0; group < kNumParamGroups; ++group) {
    optim::GroupRates& rate = rates[static_cast<size_t>(group)];
    rate.learning_rate =
        // A recipe that sets the learning rate replaces the optimizer's schedule completely.
        timeline.sets_learning_rate() ? timeline.learning_rate_at(step, group) : own_rate;
    if (const std::optional<double> decay = timeline.weight_decay_at(step, group))
      rate.weight_decay = *decay;
  }
  return rates;
}

namespace {

std::string plan_text(const optim::BufferPlan& plan, const std::vector<bool>& trainable) {
  std::string text;
  for (const std::vector<int64_t>& members : plan)
    text += fmt::format("{} {}; ",
                        trainable[static_cast<size_t>(members.front())] ? "trainable" : "frozen",
                        fmt::join(members, " "));
  return text;
}

/// Equal for parameters that may share a buffer: type, trainable, group, multiplier of the rate,
/// and the index of a matrix (-1: none).
using BufferKind = std::tuple<at::ScalarType, bool, int, double, int64_t>;

BufferKind kind_of(const Param& param, size_t index, bool trainable) {
  return {param.tensor.scalar_type(), trainable, group_of(param), param.rate_multiplier,
          param.is_matrix ? static_cast<int64_t>(index) : -1};
}

}  // namespace

optim::BufferPlan plan_layout(const ParamTable& params, const std::vector<bool>& trainable,
                              int64_t bucket_bytes) {
  std::vector<dist::PlannedParam> planned;
  std::map<BufferKind, int64_t> numbers;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto next = static_cast<int64_t>(numbers.size());
    const auto number = numbers.try_emplace(kind_of(params[i], i, trainable[i]), next).first;
    planned.push_back(
        {.num_bytes = static_cast<int64_t>(params[i].tensor.nbytes()), .group = number->second});
  }
  return dist::plan_buffers(planned, bucket_bytes);
}

std::vector<FlatBuffer> flatten_for(const std::vector<bool>& trainable, int64_t bucket_bytes,
                                    optim::FlatParams& flat_params, dist::Communicator& control) {
  const optim::BufferPlan plan = plan_layout(flat_params.params(), trainable, bucket_bytes);
  // Different plans would mix gradients of different parameters in one message.
  dist::require_equal(control, "the buffer plan", plan_text(plan, trainable));
  return flat_params.flatten(plan, trainable);
}

std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks) {
  std::vector<uint8_t> bits;
  for (const FlatSlice& slice : buffer.slices) {
    if (!masks.covers(slice.param)) continue;
    const recal::Mask& mask = masks.of(slice.param);
    // Empty bits mean "all kept", which costs nothing later.
    if (mask.num_pruned == 0) continue;
    if (bits.empty()) {
      const int64_t num_elements = buffer.values_E.numel();
      bits.resize(static_cast<size_t>(num_mask_bytes(num_elements)));
      keep_all(bits.data(), num_elements);
    }
    copy_bits(mask.kept_bits.const_data_ptr<uint8_t>(), 0, slice.num_elements, bits.data(),
              slice.offset_E);
  }
  return bits;
}

static void pass_masks_to_layers(const recal::MaskTable& masks, const ParamTable& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].follow_mask) continue;
    const auto param = static_cast<int64_t>(i);
    const bool is_pruned = masks.covers(param) && masks.of(param).num_pruned > 0;
    params[i].follow_mask(is_pruned ? masks.of(param).kept_bits.const_data_ptr<uint8_t>()
                                    : nullptr);
  }
}

void apply_recipe_changes(const recal::AppliedActions& due,
                          const recal::ScheduledModifierManager& recipe, int64_t bucket_bytes,
                          optim::FlatParams& flat_params, optim::Optimizer& optimizer,
                          dist::Communicator& control) {
  const at::NoGradGuard no_grad;
  for (const int64_t param : due.changed_params)
    // Masks before layout: slots_of() refers to the present buffers.
    for (const at::Tensor& slot : optimizer.slots_of(param)) recipe.zero_pruned(param, slot);
  for (const int64_t param : due.reset_params) optimizer.reset_momentum(param);
  // Slots are kept, also of frozen parameters.
  if (due.trainable)
    optimizer.rebuild(flatten_for(*due.trainable, bucket_bytes, flat_params, control));
}

void RecipePart::on_recipe_change(const recal::AppliedActions& due) {
  // Sharded state must be complete before a new layout shards it differently.
  if (due.trainable) parts_.reducer.complete(parts_.optimizer.sharded_state());
  apply_recipe_changes(due, parts_.recipe, parts_.bucket_bytes, parts_.flat_params,
                       parts_.optimizer, parts_.control);
  // Masks and layout are unchanged: reducer and optimizer already have them.
  if (has_set_masks_ && !due.masks_changed && !due.trainable) return;
  if (parts_.reducer.is_sharded() && (!has_set_masks_ || due.trainable))
    parts_.optimizer.set_shards(parts_.reducer.local_shards());
  set_masks();
  has_set_masks_ = true;
}

void RecipePart::set_masks() {
  const recal::MaskTable& masks = parts_.recipe.masks();
  const std::vector<FlatBuffer>& buffers = parts_.flat_params.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].frozen) continue;
    const std::vector<uint8_t> bits = kept_bits_of(buffers[i], masks);
    parts_.optimizer.set_kept(i, bits);
    // The optimizer may read all gradients, and a norm reads all: then dropped ones must be 0.
    const bool needs_zeros =
        parts_.optimizer_options.clip.norm || !parts_.optimizer.reads_kept_alone(i);
    parts_.reducer.set_kept(i, bits,
                            needs_zeros ? dist::Dropped::kZero : dist::Dropped::kUndefined);
  }
  pass_masks_to_layers(masks, parts_.flat_params.params());
}

/// Encodes statistics as float64 [M] on the CPU, M = N + K: numbers of samples, then sums.
static at::Tensor message_of(const model::SeenStatistics& seen) {
  return at::cat({at::tensor(seen.num_samples_N, at::kDouble), seen.sums_K.to(at::kCPU)});
}

/// Decodes them. like: statistics of the same model.
static model::SeenStatistics seen_of(const at::Tensor& message_M,
                                     const model::SeenStatistics& like) {
  const auto num_norms = static_cast<int64_t>(like.num_samples_N.size());
  const auto* num_samples = message_M.const_data_ptr<double>();
  return {.num_samples_N = {num_samples, num_samples + num_norms},
          .sums_K = to_device(message_M.slice(0, num_norms), like.sums_K.device())};
}

BatchStatistics::BatchStatistics(const TrainerParts& parts, const std::string& mode)
    : parts_(parts),
      norms_(parts.model.batch_norms()),
      peers_(parts.mode.peers()),
      from_root_(mode == "broadcast") {
  if (mode != "sync" || norms_.empty() || peers_.world_size() == 1) return;
  sums_ = peers_.split(0, peers_.rank());
  norms_.set_sum_over_ranks([this](const at::Tensor& values_K) {
    const at::Tensor on_host_K = values_K.to(sums_->device());  // the same tensor on the CPU
    Stopwatch watch;
    sums_->all_reduce(on_host_K, dist::ReduceOp::kSum)->wait();
    wait_s_ += watch.lap();
    if (!on_host_K.is_same(values_K)) values_K.copy_(on_host_K);
  });
}

BatchStatistics::~BatchStatistics() {
  if (sums_ != nullptr) norms_.set_sum_over_ranks({});
}

void BatchStatistics::begin_step() {
  // Also without entries in the table: a network of the user follows the flag.
  const recal::Timeline& timeline = parts_.recipe.timeline();
  const int64_t step = parts_.clock.step;
  if (has_begun_ && timeline.due_at(step).empty()) return;
  has_begun_ = true;
  // Read from the timeline, not stored: so a resumed run needs no extra state.
  norms_.set_frozen(timeline.quantization_at(step).batch_norm_frozen);
}

at::Tensor BatchStatistics::pack_seen(double number) {
  const at::Tensor first = at::full({1}, number, at::kDouble);
  return norms_.empty() ? first : at::cat({first, message_of(norms_.take_seen())});
}

double BatchStatistics::unpack_seen(const at::Tensor& sums_V) {
  given_M_ = sums_V.slice(0, 1);
  return sums_V[0].item<double>();
}

void BatchStatistics::agree(StepEnd end, int64_t) {
  // Every rank returns here or none: the conditions are equal on all ranks.
  if (norms_.empty() || end != StepEnd::kUpdated || norms_.is_frozen()) return;
  const std::optional<model::SeenStatistics> given = std::exchange(given_, std::nullopt);
  const model::SeenStatistics seen = given ? *given : norms_.take_seen();
  at::Tensor message_M = std::exchange(given_M_, {});
  const bool is_of_all_ranks = peers_.world_size() == 1 || sums_ != nullptr;
  if (!is_of_all_ranks)
    message_M = summed_over_ranks(message_M.defined() ? message_M : message_of(seen));
  agreed_ = message_M.defined() ? seen_of(message_M, seen) : seen;
}

void BatchStatistics::end_step(StepEnd end, int64_t num_samples) {
  if (norms_.empty()) return;
  if (!agreed_) agree(end, num_samples);
  const std::optional<model::SeenStatistics> agreed = std::exchange(agreed_, std::nullopt);
  if (agreed && end == StepEnd::kUpdated) return norms_.update(*agreed);
  if (!std::exchange(given_, std::nullopt)) (void)norms_.take_seen();
  given_M_ = at::Tensor();
}

at::Tensor BatchStatistics::summed_over_ranks(const at::Tensor& message_M) {
  const at::Tensor sums_M = message_M.to(peers_.device());  // the same tensor on the CPU
  if (from_root_)
    peers_.broadcast(sums_M, 0);
  else
    peers_.all_reduce(sums_M, dist::ReduceOp::kSum)->wait();
  return sums_M.to(at::kCPU);
}

// Detects changes by memory address and version counter, and in some steps by sums of bytes. Then
// the ranks agree on the changed tensors (all_reduce of the maximum), and only these are sent.

/// Steps that compare all bytes: the first ones and every kCompareEvery-th. The first ones also
/// copy all tensors. A tensor that changes at all mostly does so in one of the first steps.
constexpr int64_t kFirstComparisons = 3, kCompareEvery = 100;

static uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;  // tensors of inference_mode have none
}

/// Returns the sum of the tensor's bytes as integers: detects changes except permutations.
static int64_t sum_of_bits(const at::Tensor& tensor) {
  const at::Tensor values = dist::real_view(tensor.detach());
  if (values.numel() == 0) return 0;
  const at::ScalarType type = values.element_size() == 8   ? at::kLong
                              : values.element_size() == 4 ? at::kInt
                              : values.element_size() == 2 ? at::kShort
                                                           : at::kChar;
  return values.view(type).sum(at::kLong).item<int64_t>();
}

MovedBuffers::MovedBuffers(model::Model& model, dist::Communicator& control,
                           const std::string& mode, bool elastic)
    : model_(model), control_(control), mode_(mode), elastic_(elastic) {
  for (const model::Buffer& row : rows())
    last_.push_back({.sizes = row.tensor.sizes().vec(), .type = row.tensor.scalar_type()});
  for (const model::Buffer& row : model_.buffers()) num_saved_ += row.moved_by_forward ? 1 : 0;
}

std::vector<model::Buffer> MovedBuffers::rows() const {
  std::vector<model::Buffer> rows = model_.buffers();
  for (model::Buffer& buffer : model_.unsaved_buffers()) rows.push_back(std::move(buffer));
  std::erase_if(rows, [](const model::Buffer& row) { return !row.moved_by_forward; });
  return rows;
}

bool MovedBuffers::is_like_first(const at::Tensor& tensor, const LastState& last) const {
  return tensor.has_storage() && tensor.scalar_type() == last.type &&
         tensor.sizes().equals(last.sizes);
}

bool MovedBuffers::compares_bytes() const {
  return num_steps_ <= kFirstComparisons || num_steps_ % kCompareEvery == 0;
}

bool MovedBuffers::differs(const at::Tensor& tensor, const LastState& last) const {
  return tensor.const_data_ptr() != last.address || version_of(tensor) != last.version;
}

void MovedBuffers::remember(const at::Tensor& tensor, LastState* last) const {
  last->storage = tensor.storage();
  last->address = tensor.const_data_ptr();
  last->version = version_of(tensor);
}

/// Copies all tensors in the first steps, later only those that have changed.
void MovedBuffers::keep_copy(const at::Tensor& tensor, LastState* last) const {
  if (!last->has_moved && num_steps_ > kFirstComparisons) {
    last->copy = at::Tensor();
  } else if (!last->copy.defined() || !last->copy.sizes().equals(tensor.sizes())) {
    last->copy = tensor.detach().clone();
  } else if (last->is_copy_old) {
    last->copy.copy_(tensor);
  }
  last->is_copy_old = false;
}

void MovedBuffers::begin_step() {
  if (last_.empty()) return;
  const at::NoGradGuard no_grad;
  ++num_steps_;
  const std::vector<model::Buffer> rows = this->rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor& tensor = rows[i].tensor;
    LastState& last = last_.at(i);
    if (!is_like_first(tensor, last)) continue;
    // A change since the last step, such as by an evaluation, is sent in this step.
    const bool is_new = last.address == nullptr;
    last.is_copy_old =
        last.is_copy_old || last.changed_through_data || is_new || differs(tensor, last);
    if (is_new) remember(tensor, &last);
    keep_copy(tensor, &last);
    if (compares_bytes() && !last.changed_through_data) last.sum_of_bits = sum_of_bits(tensor);
  }
}

std::vector<int64_t> MovedBuffers::moves_here(const std::vector<model::Buffer>& rows) {
  std::vector<int64_t> moves;
  for (size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor& tensor = rows[i].tensor;
    LastState& last = last_.at(i);
    if (!is_like_first(tensor, last)) {
      moves.push_back(kReshaped);
      continue;
    }
    const bool is_visible = differs(tensor, last);
    if (!is_visible && compares_bytes() && !last.changed_through_data)
      last.changed_through_data = sum_of_bits(tensor) != last.sum_of_bits;
    moves.push_back(is_visible || last.changed_through_data ? kMoved : kNone);
  }
  return moves;
}

void MovedBuffers::restore(const std::vector<model::Buffer>& rows,
                           const std::vector<int64_t>& moves) {
  for (size_t i = 0; i < rows.size(); ++i) {
    // Without a copy the change is sent in the next step.
    if (moves[i] != kMoved || !last_[i].copy.defined()) continue;
    rows[i].tensor.copy_(last_[i].copy);
    remember(rows[i].tensor, &last_[i]);
  }
}

void MovedBuffers::refuse_reshaped(const model::Buffer& row, const LastState& last) const {
  throw Error(
      ExitCode::kConfig, "train",
      fmt::format("the network's {} is {} [{}] when it is built, and its forward pass changes it "
                  "to {} [{}]: a checkpoint could not be restored; create it with its final shape "
                  "and type in the constructor, or exclude it from checkpoints (persistent=False)",
                  row.name, c10::toString(last.type), fmt::join(last.sizes, ", "),
                  c10::toString(row.tensor.scalar_type()), fmt::join(row.tensor.sizes(), ", ")))
      .everywhere();
}

void MovedBuffers::require_may_move(const std::string& name) const {
  const auto refuse = [&](const char* key, const char* why) {
    throw Error(
        ExitCode::kConfig, "train",
        fmt::format(
            "{} cannot be combined with the network's {}, which its forward pass changes: {}", key,
            name, why))
        .everywhere();
  };
  if (elastic_)
    refuse("run.deterministic: elastic",
           "it depends on how often forward runs; use deterministic: true");
  if (mode_ == "sync" && control_.world_size() > 1)
    refuse("train.batch_norm: sync", "it needs Lockstep's own layers; use average");
}

void MovedBuffers::agree(StepEnd end, int64_t num_samples) {
  // A skipped step is skipped on all ranks, so no rank waits for the others' moves.
  if (last_.empty() || end != StepEnd::kUpdated) return;
  const at::NoGradGuard no_grad;
  const std::vector<model::Buffer> rows = this->rows();
  std::vector<int64_t> moves = moves_here(rows);
  // Ranks must agree on what is sent, and how much.
  if (control_.world_size() > 1)
    control_
        .all_reduce(at::from_blob(moves.data(), {static_cast<int64_t>(moves.size())}, at::kLong),
                    dist::ReduceOp::kMax)
        ->wait();
  std::vector<at::Tensor> floats, numbers;
  for (size_t i = 0; i < rows.size(); ++i) {
    // Rows in checkpoints come first (rows()).
    if (moves[i] == kReshaped && i < num_saved_) refuse_reshaped(rows[i], last_[i]);
    if (moves[i] != kMoved) continue;
    require_may_move(rows[i].name);
    const at::Tensor values = dist::real_view(rows[i].tensor);
    if (values.numel() > 0) (values.is_floating_point() ? floats : numbers).push_back(values);
  }
  if (control_.world_size() > 1) {
    take_mean(floats, num_samples);
    take_largest(control_, numbers, /*from_root=*/mode_ == "broadcast");
  }
  moves_ = std::move(moves);
}

void MovedBuffers::end_step(StepEnd end, int64_t num_samples) {
  if (last_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::vector<model::Buffer> rows = this->rows();
  if (end != StepEnd::kUpdated) {
    moves_.reset();
    return restore(rows, moves_here(rows));
  }
  if (!moves_) agree(end, num_samples);
  const std::vector<int64_t> moves = *std::exchange(moves_, std::nullopt);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (moves[i] != kMoved) continue;
    last_[i].has_moved = last_[i].is_copy_old = true;
    remember(rows[i].tensor, &last_[i]);
  }
}

void MovedBuffers::take_mean(const std::vector<at::Tensor>& floats, int64_t num_samples) {
  if (floats.empty()) return;
  const at::TensorOptions options(control_.device());
  at::Tensor values_K = dist::joined(floats, options.dtype(at::kDouble));
  if (mode_ == "broadcast") {
    control_.broadcast(values_K, 0);
  } else {
    const at::Tensor weight = at::full({1}, num_samples, values_K.options());
    // No product without samples: 0 times infinity would be NaN.
    const at::Tensor share_K = num_samples == 0 ? at::zeros_like(values_K) : values_K * weight;
    at::Tensor sums_V = at::cat({weight, share_K});
    control_.all_reduce(sums_V, dist::ReduceOp::kSum)->wait();
    values_K = sums_V.slice(0, 1) / sums_V[0];
  }
  dist::take_apart(values_K, floats);
}

void take_largest(dist::Communicator& comm, const std::vector<at::Tensor>& numbers,
                  bool from_root) {
  if (numbers.empty()) return;
  const at::TensorOptions options(comm.device());
  const at::Tensor values_K = dist::joined(numbers, options.dtype(at::kLong));
  if (from_root)
    comm.broadcast(values_K, 0);
  else
    comm.all_reduce(values_K, dist::ReduceOp::kMax)->wait();
  dist::take_apart(values_K, numbers);
}

}  // namespace lockstep::train
