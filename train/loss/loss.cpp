// Table of losses, their use, and their scale for float16. Every loss is a sum over samples, so
// that ranks and micro-batches can be added before the one division.
#include "train/loss/loss.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::train {
namespace {

using data::TargetKind;

at::Tensor cross_entropy_sum(const at::Tensor& logits_BC, const at::Tensor& targets_BY,
                             const LossOptions& options) {
  return at::cross_entropy_loss(logits_BC, targets_BY, /*weight=*/{}, at::Reduction::Sum,
                                data::kIgnoredTarget, options.label_smoothing);
}

/// Returns the number of values per sample.
double numbers_a_sample(const at::Tensor& values_BY) {
  return static_cast<double>(c10::multiply_integers(values_BY.sizes().slice(1)));
}

at::Tensor squared_error_sum(const at::Tensor& outputs_BY, const at::Tensor& targets_BY,
                             const LossOptions&) {
  // The mean over the values of a sample, the sum over samples.
  return at::mse_loss(outputs_BY, targets_BY, at::Reduction::Sum) / numbers_a_sample(targets_BY);
}

at::Tensor binary_sum(const at::Tensor& logits_BY, const at::Tensor& targets_BY,
                      const LossOptions&) {
  return at::binary_cross_entropy_with_logits(logits_BY, targets_BY, {}, {}, at::Reduction::Sum) /
         numbers_a_sample(targets_BY);
}

at::Tensor next_token_sum(const at::Tensor& logits_BTV, const at::Tensor& targets_BT,
                          const LossOptions& options) {
  // Ignored tokens are in the divisor here; Loss::num_counted() corrects that over the whole batch.
  return cross_entropy_sum(logits_BTV.flatten(0, 1), targets_BT.flatten(), options) /
         numbers_a_sample(targets_BT);
}

const char* usual_loss(TargetKind kind) {
  if (kind == TargetKind::kTokens) return "next_token";
  return kind == TargetKind::kValues ? "mean_squared_error" : "cross_entropy";
}

/// Returns the output shape that the network must have for one sample.
std::vector<int64_t> wanted_outputs(const data::SampleSpec& spec, const at::Tensor& targets_BY) {
  if (spec.target_kind == TargetKind::kValues) return targets_BY.sizes().slice(1).vec();
  if (spec.target_kind == TargetKind::kTokens) return {targets_BY.size(1), spec.num_classes};
  return {spec.num_classes};
}

}  // namespace

NamedTable<LossType>& loss_types() {
  static NamedTable<LossType> types = [] {
    NamedTable<LossType> own("train.loss");
    own.add({"cross_entropy",
             {TargetKind::kClass, TargetKind::kSoft},
             cross_entropy_sum,
             true,
             /*ignores=*/true});
    own.add({"mean_squared_error", {TargetKind::kValues}, squared_error_sum, true});
    own.add({"binary", {TargetKind::kValues}, binary_sum, true});
    own.add({"next_token", {TargetKind::kTokens}, next_token_sum, true, /*ignores=*/true});
    return own;
  }();
  return types;
}

Loss::Loss(const std::string& name, const LossOptions& options, const data::SampleSpec& spec,
           int64_t num_unused)
    : type_(loss_types().find(name == "auto" ? usual_loss(spec.target_kind) : name)),
      options_(options),
      spec_(spec),
      num_unused_(num_unused) {
  if (options.label_smoothing > 0 && (name == "own" || spec.target_kind == TargetKind::kValues))
    throw Error(ExitCode::kConfig, "train",
                fmt::format("train.label_smoothing is {}, but {}: it has no effect, remove it",
                            options.label_smoothing,
                            name == "own" ? "the loss is computed by the network (train.loss: own)"
                                          : "the data's targets are values"));
  if (name == "own") return;
  check(type_ != nullptr, "the run file names a loss of the table");
  if (!spec.has_targets)
    throw Error(
        ExitCode::kConfig, "train",
        fmt::format("train.loss {} needs targets, and the batches have none; their keys are "
                    "{}: call the targets `labels`, or use train.loss: own",
                    type_->name, fmt::join(spec.example.names, ", ")));
  const std::vector<TargetKind>& takes = type_->takes;
  if (std::find(takes.begin(), takes.end(), spec.target_kind) == takes.end())
    throw Error(
        ExitCode::kConfig, "train",
        fmt::format("train.loss {} does not support {}, which are the data's targets; use {}",
                    type_->name, name_of(spec.target_kind), usual_loss(spec.target_kind)));
}

at::Tensor Loss::sum(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const {
  require_fit(outputs_BO, targets_BY);
  // Losses are computed in float32, whatever autocast chose for the outputs.
  at::Tensor loss = type_->value(outputs_BO.to(at::kFloat), targets_BY, options_);
  // The row divides by the tokens of a sample, of which batches have different numbers here.
  return counts_tokens() ? loss * numbers_a_sample(targets_BY) : loss;
}

at::Tensor Loss::distilled_sum(const at::Tensor& outputs_BO, const at::Tensor& teacher_BO,
                               const at::Tensor& targets_BY, double temperature) const {
  if (!outputs_BO.defined())
    throw Error(ExitCode::kConfig, "train",
                "distillation compares outputs, and the network's own loss comes without them: "
                "return both from forward, by name, or set train.loss");
  if (outputs_BO.sizes() != teacher_BO.sizes())
    throw Error(
        ExitCode::kConfig, "train",
        fmt::format("the network returns [{}] and its teacher [{}] for the same {} samples: "
                    "a teacher needs the same outputs (train.distill_teacher)",
                    fmt::join(outputs_BO.sizes(), ", "), fmt::join(teacher_BO.sizes(), ", "),
                    targets_BY.size(0)));
  const auto softened = [&](const at::Tensor& logits) {
    return at::log_softmax(logits.to(at::kFloat) / temperature, -1);
  };
  at::Tensor rows = at::kl_div(softened(outputs_BO), softened(teacher_BO), at::Reduction::None,
                               /*log_target=*/true)
                        .sum(-1) *
                    (temperature * temperature);
  if (is_own()) return rows.mean() * num_counted(targets_BY);
  if (may_ignore() && rows.sizes() == targets_BY.sizes())
    rows = rows * targets_BY.ne(data::kIgnoredTarget);
  return counts_tokens() ? rows.sum() : rows.sum() / numbers_a_sample(rows);
}

void Loss::require_distillable() const {
  if (!is_own() && spec_.target_kind == TargetKind::kValues)
    throw Error(ExitCode::kConfig, "train",
                "distillation compares probabilities of classes, and the data's targets are "
                "values: remove the DistillationModifier");
}

void Loss::require_fit(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const {
  const std::vector<int64_t> wanted = wanted_outputs(spec_, targets_BY);
  if (outputs_BO.dim() > 0 && outputs_BO.size(0) == targets_BY.size(0) &&
      outputs_BO.sizes().slice(1) == at::IntArrayRef(wanted))
    return;
  std::vector<int64_t> shape = {targets_BY.size(0)};
  shape.insert(shape.end(), wanted.begin(), wanted.end());
  throw Error(
      ExitCode::kConfig, "train",
      fmt::format(
          "the network returns [{}] for {} samples, the loss {} needs [{}]: the data has {}",
          fmt::join(outputs_BO.sizes(), ", "), targets_BY.size(0), type_->name,
          fmt::join(shape, ", "), describe(spec_)));
}

TargetCounts Loss::count(const at::Tensor& targets_BY) const {
  const int64_t num_samples = targets_BY.size(0);
  if (!may_ignore()) return {num_samples, num_samples};
  const at::Tensor used =
      targets_BY.dim() < 2 ? targets_BY
                           : targets_BY.slice(/*dim=*/1, std::min(num_unused_, targets_BY.size(1)));
  return {used.ne(data::kIgnoredTarget).sum().item<int64_t>(),
          spec_.varies ? num_samples : used.numel()};
}

double Loss::num_counted(const at::Tensor& targets_BY) const {
  const TargetCounts counts = count(targets_BY);
  if (counts.all == 0) return 0;
  return static_cast<double>(counts.counted * targets_BY.size(0)) / static_cast<double>(counts.all);
}

std::optional<double> Loss::num_correct(const at::Tensor& outputs_BO,
                                        const at::Tensor& targets_BY) const {
  if (spec_.target_kind == TargetKind::kValues) return std::nullopt;
  // The index of the highest output, for samples and for tokens alike.
  const at::Tensor chosen = outputs_BO.argmax(-1);
  const at::Tensor right =
      chosen.eq(spec_.target_kind == TargetKind::kSoft ? targets_BY.argmax(-1) : targets_BY);
  // Soft labels and tokens: `right` has one flag per sample or token.
  const auto num_right = right.sum().item<double>();
  return counts_tokens() ? num_right : num_right / numbers_a_sample(right);
}

static LossScaleOptions read_loss_scale_options(ConfigReader in) {
  LossScaleOptions options;
  in.read("initial_exponent", &options.initial_exponent,
          between(0, static_cast<double>(LossScale::kMaxExponent)),
          "fp16: exponent of the initial loss scale, a power of 2");
  in.read("growth_steps", &options.growth_steps, count_from(1),
          "fp16: finite updates in a row before the scale doubles");
  in.done();
  return options;
}

bool LossScale::end_step(bool losses_finite, bool gradients_finite) {
  // A non-finite loss comes from the data or the weights; a smaller scale would not help.
  if (!dynamic_ || !losses_finite) return false;
  if (!gradients_finite) {
    finite_steps_ = 0;
    // At scale 1 the overflow has another cause: the step counts as non-finite.
    if (exponent_ == 0) return false;
    --exponent_;
    return true;
  }
  if (++finite_steps_ < options_.growth_steps) return false;
  finite_steps_ = 0;
  exponent_ = std::min(exponent_ + 1, kMaxExponent);
  return false;
}

StateList LossScale::state() {
  if (!dynamic_) return {};
  return {{"_lockstep/loss_scale/exponent", view_of(&exponent_), nullptr,
           static_cast<double>(options_.initial_exponent)},
          {"_lockstep/loss_scale/finite_steps", view_of(&finite_steps_), nullptr, 0.0}};
}

// Reader of section `train`. The texts are also the documentation of the keys.

TrainOptions read_train_options(ConfigReader in) {
  TrainOptions options;
  std::vector<std::string> losses = loss_types().names();
  losses.insert(losses.begin(), {"auto", "own"});
  in.read_choice("loss", &options.loss, losses,
                 "loss, averaged over all samples of an update; auto: by the targets; own: "
                 "computed by the network");
  in.read("label_smoothing", &options.loss_options.label_smoothing, half_open(0, 1),
          "cross_entropy, next_token: label smoothing");
  in.read_choice("precision", &options.precision, {"fp32", "bf16", "fp16"},
                 "number type of layers; weights, gradients and loss stay fp32");
  options.loss_scale = read_loss_scale_options(in.section("loss_scale"));
  in.read_choice("batch_norm", &options.batch_norm, {"broadcast", "average", "sync"},
                 "running statistics: rank 0's (broadcast) or their mean; sync: also normalize "
                 "over all ranks' samples");
  in.read_choice("cuda_graphs", &options.cuda_graphs, {"auto", "on", "off"},
                 "CUDA graphs of forward and backward; auto: unless gradients overlap backward; "
                 "on: instead of that overlap");
  in.read("replicas_to_aggregate", &options.replicas_to_aggregate, between(1, 1e6),
          "gradient accumulation: micro-batches per update and rank");
  options.trainable_scopes =
      NameScopes::read(&in, "trainable_scopes",
                       "prefixes of trained variables, as a list or comma-separated; others stay "
                       "frozen until a recipe changes that; default all");
  options.teacher = read_teacher_options(&in);
  in.read("max_steps", &options.max_steps, count_from(0),
          "limit in updates, overriding the recipe");
  in.read("max_epochs", &options.max_epochs, count_from(0),
          "limit in epochs, overriding the recipe");
  in.read("max_nonfinite_steps", &options.max_nonfinite_steps, count_from(1),
          "skipped non-finite updates in a row that end the run");
  in.done();
  return options;
}

}  // namespace lockstep::train
