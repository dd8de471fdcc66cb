// The step of a user's loop. Hooks of autograd collect gradients in flat buffers, a callback at the
// end of backward averages them, and the optimizer's own hooks frame the update.
#include "pytorch/training_loop.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include "base/diagnostics.h"
#include "base/log.h"
#include "model/linear/linear_function.h"
#include "pytorch/gloo_ranks.h"
#include "recal/recipe/recipe_reader.h"
#include "train/step/buffers.h"

namespace lockstep::pytorch {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

std::mutex error_mutex;
LoopError last_error;  // of any loop of this process

std::string text_of(const ParamTable& params) {
  std::string text;
  for (const Param& param : params)
    text += fmt::format("{} {} {} [{}]\n", param.name, c10::toString(param.tensor.scalar_type()),
                        param.tensor.device().str(), fmt::join(param.tensor.sizes(), ", "));
  return text;
}

/// Returns the table. Throws unless it is equal on all ranks and supported.
ParamTable checked(ParamTable params, dist::Communicator& control) {
  dist::require_equal(control, "the list of trained parameters", text_of(params));
  // Equal on all ranks from here on.
  const auto refuse = [](const std::string& message) {
    throw Error(ExitCode::kConfig, "pytorch", message).everywhere();
  };
  if (params.empty()) refuse("the module has no parameter that requires a gradient");
  for (const Param& param : params) {
    const at::Tensor& tensor = param.tensor;
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided)
      refuse(fmt::format("{} is on {}; lockstep.DataParallel trains dense parameters on the CPU",
                         param.name, tensor.device().str()));
    if (std::find(std::begin(kTypes), std::end(kTypes), tensor.scalar_type()) == std::end(kTypes))
      refuse(fmt::format("{} is {}; supported are Float, Double, BFloat16 and Half", param.name,
                         c10::toString(tensor.scalar_type())));
  }
  return params;
}

recal::Recipe read_recipe(const std::string& path) {
  if (path.empty()) return {};
  Diagnostics faults;
  recal::Recipe recipe = recal::load_recipe(path, &faults);
  faults.throw_if_any("recipe");
  return recipe;
}

recal::ScheduledModifierManager attach_recipe(const LoopOptions& options, const ParamTable& params,
                                              int64_t steps_per_epoch) {
  recal::ScheduledModifierManager attached(read_recipe(options.recipe));
  Diagnostics faults;
  attached.attach(params,
                  {.steps_per_epoch = steps_per_epoch,
                   .base_learning_rate = options.learning_rate,
                   .optimizer_type = options.optimizer_type,
                   .layers = options.layers,
                   .frozen_in_constructor = options.frozen_params,
                   .teacher = recal::TeacherChoice::kNoLoss,
                   .updates_keep_zeros = options.updates_keep_zeros},
                  &faults);
  faults.throw_if_any("recipe");
  if (attached.reads_gradients())
    throw Error(ExitCode::kConfig, "pytorch",
                "the recipe prunes by gradients (OBSPruningModifier, MFACPruningModifier, "
                "MovementPruningModifier), which a loop of your own may change or clear: use "
                "GMPruningModifier, or train with lockstepd");
  return attached;
}

/// Refuses a recipe whose timeline depends on the steps per epoch: one and seven give two.
void require_no_epochs(const recal::Timeline& of_one, const recal::Timeline& of_seven) {
  const std::vector<std::string> changes =
      recal::timeline_changes(of_one.canonical_text(), of_seven.canonical_text(), 0);
  if (changes.size() > 1)  // the first is the number itself
    throw Error(
        ExitCode::kConfig, "pytorch",
        "the recipe counts epochs: pass steps_per_epoch, a number or the loader of training "
        "data, or write all its times in steps");
}

/// Compiles the recipe for these parameters. A fault on one rank is an error of all.
recal::ScheduledModifierManager attached_recipe(const LoopOptions& options,
                                                const ParamTable& params,
                                                dist::Communicator& control) {
  auto manager = dist::on_all_ranks(control, [&] {
    // Without a recipe, a checkpoint fits whatever the length of an epoch.
    if (options.recipe.empty()) return attach_recipe(options, params, 1);
    if (options.steps_per_epoch > 0) return attach_recipe(options, params, options.steps_per_epoch);
    auto attached = attach_recipe(options, params, 1);
    require_no_epochs(attached.timeline(), attach_recipe(options, params, 7).timeline());
    return attached;
  });
  dist::require_equal(control, "the timeline of the recipe", manager.timeline().canonical_text());
  return manager;
}

/// Creates a communicator of the same ranks. Collective.
std::unique_ptr<dist::Communicator> another(dist::Communicator& comm) {
  auto made = comm.split(0, comm.rank());
  if (made == nullptr)
    throw Error(ExitCode::kUnavailable, "pytorch",
                "the ranks have no shared memory for another communicator; enlarge /dev/shm")
        .everywhere();
  return made;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const LoopOptions& options,
                                                 std::vector<FlatBuffer>& buffers,
                                                 const ParamTable& params) {
  check(options.rule || (!options.sync.shard_optimizer && !options.share_weights),
        "only the loop's own updates can be divided among ranks");
  return options.rule ? optim::make_optimizer(*options.rule, buffers, params) : nullptr;
}

std::vector<bool> all_trainable(const ParamTable& params) {
  return std::vector<bool>(params.size(), true);
}

const void* place_of(const FlatBuffer& buffer, const FlatSlice& slice) {
  return static_cast<const char*>(buffer.values_E.const_data_ptr()) +
         slice.offset_E * buffer.values_E.element_size();
}

}  // namespace

LoopError last_loop_error() {
  const std::lock_guard lock(error_mutex);
  return last_error;
}

void rethrow_for_pytorch() {
  LoopError now{.code = ExitCode::kBug};
  try {
    throw;
  } catch (const Error& error) {
    now = {.text = text_for_python(error, "the timeout of lockstep.DataParallel"),
           .code = error.code()};
  } catch (const std::exception& error) {
    now.text = error.what();
  }
  {
    const std::lock_guard lock(error_mutex);
    last_error = now;
  }
  throw std::runtime_error(now.text);
}

bool RecipeRates::set_nothing() const {
  const auto is_set = [](const std::optional<double>& rate) { return rate.has_value(); };
  return std::none_of(learning_rates.begin(), learning_rates.end(), is_set) &&
         std::none_of(weight_decays.begin(), weight_decays.end(), is_set);
}

TrainingLoop::TrainingLoop(std::unique_ptr<dist::Communicator> control, LoopOptions options)
    : control_(std::move(control)),
      gradients_(another(*control_)),
      params_(checked(std::move(options.params), *control_)),
      bucket_bytes_(options.sync.bucket_bytes),
      flat_params_(params_, train::plan_layout(params_, all_trainable(params_), bucket_bytes_),
                   at::Device(at::kCPU)),
      reducer_(*gradients_, flat_params_.buffers(), params_, options.sync),
      optimizer_(make_optimizer(options, flat_params_.buffers(), params_)),
      recipe_(attached_recipe(options, params_, *control_)),
      clock_{.step = 0, .steps_per_epoch = std::max<int64_t>(1, options.steps_per_epoch)},
      timeline_(recipe_.timeline().canonical_text()),
      saved_timeline_(timeline_),
      is_divided_(control_->world_size() > 1 &&
                  (options.sync.shard_optimizer || options.share_weights)) {
  for (const FlatBuffer& buffer : flat_params_.buffers()) control_->broadcast(buffer.values_E, 0);
  // Parameters without a gradient are usual in a user's network, and known from the counts.
  reducer_.name_no_missing();
  if (options.share_weights && control_->world_size() > 1) share_weights();
  watch_gradients();
}

void TrainingLoop::share_weights() {
  dist::SharedMemory memory = gradients_->share_memory(
      dist::SharedFlatMemory::bytes_for(params_, gradients_->world_size()));
  if (memory.begin == nullptr)
    throw Error(
        ExitCode::kConfig, "pytorch",
        fmt::format("engine_update=\"shared\" is not possible: {}; use \"shards\"", memory.why_not))
        .everywhere();
  flat_params_.move_to(
      std::make_unique<dist::SharedFlatMemory>(*gradients_, std::move(memory), params_));
  recipe_.share_weights();
}

TrainingLoop::~TrainingLoop() = default;

std::vector<int64_t> TrainingLoop::groups_P() const {
  std::vector<int64_t> groups;
  for (const Param& param : params_) groups.push_back(group_of(param));
  return groups;
}

int64_t TrainingLoop::num_trainable() const {
  int64_t num_elements = 0;
  for (const at::Tensor& view : views_)
    if (view.defined()) num_elements += view.numel();
  return num_elements;
}

at::Tensor TrainingLoop::linear(int64_t param, const at::Tensor& inputs,
                                const at::Tensor& weight_OI, const at::Tensor& bias_O) const {
  const auto index = static_cast<size_t>(param);
  // torch.func.functional_call() puts another tensor in the weight's place.
  const bool is_own = weight_OI.is_same(params_[index].tensor) && views_[index].defined();
  return is_own ? model::linear_into(inputs, weight_OI, bias_O, views_[index])
                : at::linear(inputs, weight_OI, bias_O);
}

std::vector<at::Tensor> TrainingLoop::slots_of(int64_t param) {
  if (optimizer_ == nullptr || reducer_.is_sharded()) return {};
  return optimizer_->slots_of(param);
}

void TrainingLoop::broadcast(at::TensorList tensors) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor values = tensor.detach().contiguous();  // the same memory if possible
    // As bytes, so that each type can travel.
    control_->broadcast(
        at::from_blob(values.data_ptr(), {static_cast<int64_t>(values.nbytes())}, at::kByte), 0);
    if (!tensor.is_contiguous()) tensor.detach().copy_(values);
  }
}

// Recipe.

/// Copies values that the user's code has put elsewhere, as `parameter.data = ...` and
/// vector_to_parameters() do, back into the buffers, which updates change.
void TrainingLoop::take_back_values() {
  const at::NoGradGuard no_grad;
  for (const FlatBuffer& buffer : flat_params_.buffers())
    for (const FlatSlice& slice : buffer.slices) {
      Param& param = params_[static_cast<size_t>(slice.param)];
      if (slice.num_elements == 0 || param.tensor.const_data_ptr() == place_of(buffer, slice))
        continue;
      if (param.tensor.numel() != slice.num_elements ||
          param.tensor.scalar_type() != buffer.values_E.scalar_type())
        throw Error(ExitCode::kConfig, "pytorch",
                    fmt::format("the code has given {} another type or size since "
                                "lockstep.DataParallel wrapped the module: change these before",
                                param.name));
      const at::Tensor view = optim::view_of_slice(buffer.values_E, slice, params_);
      view.copy_(param.tensor);
      param.tensor.set_data(view);
    }
}

StateChanges TrainingLoop::begin_step(bool syncs) {
  if (is_queued_)
    throw Error(ExitCode::kConfig, "pytorch",
                "the last backward() ended with an exception before the ranks had averaged their "
                "gradients; training cannot continue");
  take_back_values();
  is_counted_ = false;
  accumulates_ = !syncs;
  StateChanges changes;
  if (applied_step_ != clock_.step && !is_finalized_) {
    if (is_armed_) average();  // of a forward pass without backward
    // A save may still read weights.
    if (recipe_.acts_at(clock_.step)) before_changes();
    applied_step_ = clock_.step;
    changes = follow(recipe_.apply_due(clock_.step, *control_));
  }
  keeps_old_gradients_ = is_synced_ && has_divided_gradients();
  // A second forward pass before backward finds the reducer armed.
  if (syncs && !std::exchange(is_armed_, true)) reducer_.prepare_for_backward();
  return changes;
}

StateChanges TrainingLoop::follow(const recal::AppliedActions& due) {
  const at::NoGradGuard no_grad;
  if (optimizer_ != nullptr) {
    // Before the layout, since slots refer to the present buffers.
    if (due.trainable) reducer_.complete(optimizer_->sharded_state());
    for (const int64_t param : due.changed_params)
      for (const at::Tensor& slot : optimizer_->slots_of(param)) recipe_.zero_pruned(param, slot);
    for (const int64_t param : due.reset_params) optimizer_->reset_momentum(param);
  }
  if (due.trainable) lay_out(*due.trainable);
  if (reducer_.is_sharded() && (!has_set_masks_ || due.trainable))
    optimizer_->set_shards(reducer_.local_shards());
  if (!std::exchange(has_set_masks_, true) || due.masks_changed || due.trainable) set_masks();
  return {.pruned = due.changed_params, .reset = due.reset_params};
}

void TrainingLoop::lay_out(const std::vector<bool>& trainable) {
  const std::vector<FlatBuffer> before =
      train::flatten_for(trainable, bucket_bytes_, flat_params_, *control_);
  if (optimizer_ != nullptr) optimizer_->rebuild(before);
  watch_gradients();
}

void TrainingLoop::set_masks() {
  const std::vector<FlatBuffer>& buffers = flat_params_.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].frozen) continue;
    const std::vector<uint8_t> bits = train::kept_bits_of(buffers[i], recipe_.masks());
    if (optimizer_ != nullptr) optimizer_->set_kept(i, bits);
    // The user's optimizer and clipping read all gradients, so dropped ones must be 0.
    reducer_.set_kept(i, bits, dist::Dropped::kZero);
  }
}

StateChanges TrainingLoop::finalize() {
  if (std::exchange(is_finalized_, true)) return {};
  if (is_armed_) average();
  before_changes();
  // recipe_.finalize() would drop the masks, which the optimizer's state and checkpoints need.
  return follow(recipe_.apply_closing(clock_.step, *control_));
}

// Checkpoints.

StateList TrainingLoop::state() {
  StateList all = recipe_.state();
  for (StateEntry& entry : reducer_.state()) all.push_back(std::move(entry));
  if (optimizer_ != nullptr)
    for (StateEntry& entry : optimizer_->state()) all.push_back(std::move(entry));
  all.push_back({.key = "_lockstep/timeline", .text = &saved_timeline_});
  all.push_back({.key = "_lockstep/step", .tensor = view_of(&clock_.step)});
  return all;
}

void TrainingLoop::restored(bool accepts_changes) {
  if (is_armed_) average();  // of a forward pass without backward
  const std::string saved = std::exchange(saved_timeline_, timeline_);
  const std::vector<std::string> changes = recal::timeline_changes(saved, timeline_, clock_.step);
  if (!changes.empty() && !accepts_changes)
    throw Error(ExitCode::kConfig, "resume",
                fmt::format("the recipe's timeline has changed since the checkpoint:\n  {}\npass "
                            "accept_recipe_change=True to continue with the new one, or set the "
                            "recipe back",
                            fmt::join(changes, "\n  ")))
        .everywhere();
  recipe_.restored(*control_);
  if (optimizer_ != nullptr) reducer_.complete(optimizer_->sharded_state());
  // The recipe reports frozen parameters again at its next step, as changes from all trainable.
  lay_out(all_trainable(params_));
  has_set_masks_ = has_unsynced_ = is_synced_ = is_finalized_ = false;
  applied_step_ = -1;
}

std::unique_ptr<dist::Communicator> TrainingLoop::another_communicator() const {
  return another(*control_);
}

// Gradients. After a new layout, `grad` is undefined as after zero_grad(), so that a parameter that
// backward does not reach has no gradient.

void TrainingLoop::watch_gradients() {
  hooks_.reset();
  // Autograd calls hooks in the order of their creation. Gradients must be in the buffer before the
  // reducer's hooks release it, so those are created after these.
  reducer_.follow_backward(false);
  views_.assign(params_.size(), at::Tensor());
  for (const FlatBuffer& buffer : flat_params_.buffers())
    for (const FlatSlice& slice : buffer.slices) {
      const auto param = static_cast<size_t>(slice.param);
      grad_of(param) = at::Tensor();
      if (!buffer.frozen) views_[param] = optim::view_of_slice(buffer.grads_E, slice, params_);
    }
  hooks_ = std::make_unique<dist::GradientHooks>(params_, [this](int64_t param) {
    try {
      on_gradient(param);
    } catch (...) {
      rethrow_for_pytorch();
    }
  });
  reducer_.follow_backward(true);
}

/// Moves the gradient into its buffer if it is elsewhere.
void TrainingLoop::move_into_buffer(size_t param) {
  at::Tensor& grad = grad_of(param);
  const at::Tensor& view = views_[param];
  if (!grad.defined())
    throw Error(ExitCode::kConfig, "pytorch",
                fmt::format("a hook of the user's removed the gradient of {} before the ranks "
                            "averaged it; use the gradient after backward()",
                            params_[param].name));
  const bool is_dense = grad.layout() == at::kStrided;
  if (is_dense && grad.const_data_ptr() == view.const_data_ptr()) return;
  view.copy_(is_dense ? grad : grad.to_dense());
  grad = view;
}

void TrainingLoop::on_gradient(int64_t param) {
  const at::NoGradGuard no_grad;
  count_pass();
  move_into_buffer(static_cast<size_t>(param));
  if (is_armed_) return queue_average();
  if (!accumulates_)
    throw Error(ExitCode::kConfig, "pytorch",
                fmt::format("backward() reached {} and the ranks will not average its gradient: "
                            "call the wrapped module before each backward(), not the module in it; "
                            "with torch.utils.checkpoint, use_reentrant=False; for several "
                            "backward() of one forward pass, no_sync() around all but the last",
                            params_[static_cast<size_t>(param)].name));
  has_unsynced_ = true;
}

void TrainingLoop::count_pass() {
  if (!std::exchange(is_counted_, true)) ++num_passes_;
}

/// True if updates are divided among the ranks and a gradient is not 0. Outside of a rank's part it
/// is no mean then, and nothing may be added to it.
bool TrainingLoop::has_divided_gradients() const {
  if (!is_divided_) return false;
  return std::any_of(params_.begin(), params_.end(), [](const Param& param) {
    const at::Tensor& grad = param.tensor.grad();
    return grad.defined() && grad.ne(0).any().item<bool>();
  });
}

/// Averages after the last node of the backward pass that runs.
void TrainingLoop::queue_average() {
  if (is_queued_.exchange(true)) return;
  if (keeps_old_gradients_)
    throw Error(
        ExitCode::kConfig, "pytorch",
        "a second backward() averages gradients in this step, which engine_update "
        "\"shards\" and \"shared\" cannot add up: use no_sync() around all but the last, or "
        "call zero_grad() before");
  torch::autograd::Engine::get_default_engine().queue_callback([this] {
    try {
      average();
    } catch (...) {
      rethrow_for_pytorch();
    }
  });
}

/// Zeroes the buffers' parts of parameters without gradient and returns their number.
double TrainingLoop::fill_missing() {
  double num_missing = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!views_[i].defined()) continue;
    if (grad_of(i).defined()) {
      move_into_buffer(i);
    } else {
      views_[i].zero_();
      ++num_missing;
    }
  }
  return num_missing;
}

void TrainingLoop::average() {
  const at::NoGradGuard no_grad;
  is_queued_ = false;
  is_armed_ = false;
  count_pass();  // also one that reached no parameter of this rank
  // Buffers with a missing gradient are incomplete, so the reducer has not sent them yet.
  const double num_missing = fill_missing();
  totals_ = reducer_.finish(
      {.num_samples = 1, .gradient_divisor = gradients_->world_size(), .counts = {num_missing}});
  if (!totals_.counts_nothing()) drop_unreached();
  // A GradScaler reads this rank's part, and must skip the update if another part is not finite.
  if (is_divided_ && !totals_.finite())
    for (size_t i = 0; i < params_.size(); ++i)
      if (grad_of(i).defined()) grad_of(i).fill_(std::numeric_limits<double>::quiet_NaN());
  has_unsynced_ = false;
  is_synced_ = true;
}

/// Sets the views of parameters that some rank's backward reached. The others keep no gradient, as
/// in torch.optim. Collective.
void TrainingLoop::drop_unreached() {
  const auto num_params = static_cast<int64_t>(params_.size());
  const at::Tensor num_ranks_P = at::zeros({num_params}, at::kLong);
  auto* const num_ranks = num_ranks_P.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < params_.size(); ++i) num_ranks[i] = grad_of(i).defined() ? 1 : 0;
  reducer_.sum(num_ranks_P);
  for (size_t i = 0; i < params_.size(); ++i)
    if (num_ranks[i] > 0 && views_[i].defined()) grad_of(i) = views_[i];
}

void TrainingLoop::drop_gradients() {
  for (size_t i = 0; i < params_.size(); ++i) grad_of(i) = at::Tensor();
}

// Update. All conditions below are equal on all ranks.

RecipeRates TrainingLoop::begin_update() {
  take_back_values();
  // Backward has reached nothing here, but may have on other ranks, which wait.
  if (is_armed_) average();
  if (has_unsynced_)
    throw Error(ExitCode::kConfig, "pytorch",
                "optimizer.step() with gradients that the ranks have not averaged: run the last "
                "forward() and backward() before it outside no_sync()");
  if (is_synced_ && !totals_.finite()) {
    drop_gradients();
    if (std::exchange(names_skipped_, false) && rank() == 0)
      log::warning("pytorch", fmt::format("step {}: the update was skipped, because the mean "
                                          "gradient is not finite (logged once)",
                                          clock_.step + 1));
  }
  before_changes();
  RecipeRates rates;
  if (is_finalized_) return rates;
  const recal::Timeline& timeline = recipe_.timeline();
  for (int group = 0; group < kNumParamGroups; ++group) {
    const auto g = static_cast<size_t>(group);
    if (timeline.sets_learning_rate())
      rates.learning_rates[g] = timeline.learning_rate_at(clock_.step, group);
    rates.weight_decays[g] = timeline.weight_decay_at(clock_.step, group);
  }
  return rates;
}

/// Waits until saves have copied the state and, with shared weights, until no rank reads it.
void TrainingLoop::before_changes() {
  if (before_changes_) before_changes_();
  reducer_.begin_changes();
}

void TrainingLoop::update(const optim::StepRates& rates) {
  check(optimizer_ != nullptr, "a loop without a rule updates nothing");
  if (is_synced_ && totals_.finite()) {
    const at::NoGradGuard no_grad;
    std::vector<int64_t> without_gradient;  // not reached, or removed by the user
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!views_[i].defined()) continue;
      if (grad_of(i).defined())
        move_into_buffer(i);  // the user may have replaced it
      else
        without_gradient.push_back(static_cast<int64_t>(i));
    }
    optimizer_->exclude(std::move(without_gradient));
    optimizer_->step(rates);
    (void)reducer_.gather_values();
  }
  // The user's optimizer skips parameters without gradient.
  for (size_t i = 0; i < params_.size(); ++i)
    if (!is_divided_ && grad_of(i).defined()) hidden_grads_.push_back(i);
  drop_gradients();
}

void TrainingLoop::end_update() {
  for (const size_t param : std::exchange(hidden_grads_, {})) grad_of(param) = views_[param];
  if (!std::exchange(is_synced_, false)) return;
  if (!is_finalized_) recipe_.end_step(totals_.finite(), *control_);
  ++clock_.step;
}

}  // namespace lockstep::pytorch
