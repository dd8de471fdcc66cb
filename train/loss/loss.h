#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/named_table.h"
#include "base/tensors/name_scopes.h"
#include "base/tensors/state_list.h"
#include "base/yaml/config_reader.h"
#include "data/dataset.h"
#include "train/loss/teacher.h"

/// Losses (the values of train.loss in a run file), and their scale for float16. Symbols: B =
/// samples, O = the shape of one sample's outputs, Y = the shape of one target.
namespace lockstep::train {

struct LossOptions {
  double label_smoothing = 0;  ///< fraction of each target that is spread over all classes
};

/// A row of the table. `value` returns the sum of the samples' losses: a scalar, 0 for no samples.
/// A sum, not a mean: ranks have different counts, and the sum over ranks is divided once by the
/// global count.
struct LossType {
  std::string name;
  std::vector<data::TargetKind> takes;  ///< kinds of targets
  std::function<at::Tensor(const at::Tensor& outputs_BO, const at::Tensor& targets_BY,
                           const LossOptions& options)>
      value;
  bool repeats_itself = false;  ///< as in ModelType (model/networks/model_table.h)
  /// True if targets of data::kIgnoredTarget add nothing to the sum, which is then divided by the
  /// number of the other targets (Loss::num_counted).
  bool ignores = false;
};

/// Table of losses. A program that embeds Lockstep adds rows before it reads the run file:
///   cross_entropy       class numbers or soft labels; label_smoothing: Szegedy et al.,
///                       arXiv 1512.00567, section 7
///   mean_squared_error  values: the mean over the numbers of a target
///   binary              values in [0, 1] from logits: cross-entropy, the mean over the numbers
///   next_token          tokens: cross-entropy, the mean over the tokens of a sample; ignored
///                       tokens count neither in the sum nor in its divisor
NamedTable<LossType>& loss_types();

/// Targets of some samples: those that count in the mean loss, and the number that makes the share
/// of counted ones independent of the cut into batches. That is all targets if each sample has
/// equally many, else the number of samples.
struct TargetCounts {
  int64_t counted = 0, all = 0;
};

/// A loss with its options, for data of one kind.
class Loss {
 public:
  /// `name`: a row of the table; auto: cross_entropy, mean_squared_error or next_token, depending
  /// on the targets; own: the network's. num_unused: Model::num_unused_targets(), for own. Throws
  /// Error(kConfig) if that loss does not accept such targets. Also throws if label_smoothing is
  /// above 0 and the targets are not classes.
  Loss(const std::string& name, const LossOptions& options, const data::SampleSpec& spec,
       int64_t num_unused = 0);

  /// True if Model::own_loss() replaces sum().
  bool is_own() const { return type_ == nullptr; }
  bool repeats_itself() const { return type_ != nullptr && type_->repeats_itself; }
  /// True if targets of a batch may be ignored.
  bool may_ignore() const { return (is_own() || type_->ignores) && spec_.may_ignore; }

  /// Returns the sum of the losses, which num_counted() divides; outputs of any float type. Throws
  /// Error(kConfig) if their shape does not fit the targets'.
  at::Tensor sum(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const;

  /// Returns the sum over the samples of temperature^2 times the KL divergence of the softened
  /// outputs from those of a teacher, over the last dimension. A sample with several rows, such as
  /// tokens, counts their mean. It has the same divisor as sum(): ignored targets add nothing. For
  /// the network's own loss: the mean over all rows times num_counted(). Throws Error(kConfig) if
  /// the shapes differ.
  at::Tensor distilled_sum(const at::Tensor& outputs_BO, const at::Tensor& teacher_BO,
                           const at::Tensor& targets_BY, double temperature) const;
  /// Throws Error(kConfig) if the outputs are values, whose softmax has no meaning.
  void require_distillable() const;

  /// Counts the targets of a batch, on their device.
  TargetCounts count(const at::Tensor& targets_BY) const;
  /// Divisor that makes the sum over these samples a mean: their number. If targets may be ignored:
  /// the share of those that count, or their number if samples have different numbers of targets.
  double num_counted(const at::Tensor& targets_BY) const;

  /// Number of correct samples: those whose class, or most probable class, has the highest output.
  /// For tokens: the fraction of correct tokens of each sample, or the number of correct tokens if
  /// samples have different numbers of them. nullopt for values.
  std::optional<double> num_correct(const at::Tensor& outputs_BO,
                                    const at::Tensor& targets_BY) const;

 private:
  void require_fit(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const;
  /// True if each token has the same weight, not each sample.
  bool counts_tokens() const {
    return spec_.varies && spec_.target_kind == data::TargetKind::kTokens;
  }

  const LossType* type_;  ///< null: the network's own loss
  LossOptions options_;
  data::SampleSpec spec_;
  int64_t num_unused_;
};

/// Section `train.loss_scale` of the run file, for train.precision: fp16.
struct LossScaleOptions {
  int64_t initial_exponent = 16;
  int64_t growth_steps = 2000;  ///< finite updates in a row after which the scale doubles
};

/// Power of two by which losses are multiplied before backward, so that small gradients do not
/// round to 0 in float16. It doubles after many finite updates and halves when a gradient
/// overflows. It depends only on decisions that are equal on all ranks, so it is equal too.
///
/// Source: Micikevicius et al., arXiv 1710.03740, section 3.2.
class LossScale {
 public:
  static constexpr int64_t kMaxExponent = 24;

  /// dynamic = false: always 1.
  LossScale(const LossScaleOptions& options, bool dynamic)
      : options_(options), dynamic_(dynamic), exponent_(dynamic ? options.initial_exponent : 0) {}
  LossScale() : LossScale({}, false) {}

  int64_t value() const { return int64_t{1} << exponent_; }
  bool is_dynamic() const { return dynamic_; }

  /// Ends a step. losses_finite: results of forward, which no scale can change. Returns true if the
  /// step was skipped because the scale was too large, and the scale was reduced.
  bool end_step(bool losses_finite, bool gradients_finite);

  /// Checkpoint state `_lockstep/loss_scale/...`, live memory; empty if not dynamic. After a
  /// checkpoint without it, the scale starts again.
  StateList state();

 private:
  LossScaleOptions options_;
  bool dynamic_;
  int64_t exponent_;
  int64_t finite_steps_ = 0;  ///< in a row, since the last change of the scale
};

/// Section `train` of the run file.
struct TrainOptions {
  std::string loss = "auto";  ///< name in loss_types(), auto or own
  LossOptions loss_options;
  std::string precision = "fp32";      ///< of forward and backward: fp32 | bf16 | fp16
  LossScaleOptions loss_scale;         ///< fp16
  std::string batch_norm = "average";  ///< train/step/buffers.h
  std::string cuda_graphs = "auto";    ///< auto | on | off: train/step/training_pass.h
  int64_t replicas_to_aggregate = 1;   ///< micro-batches of an update per rank (accumulation)
  NameScopes trainable_scopes;         ///< variables that are trained; none: all
  TeacherOptions teacher;              ///< for recipes that distil
  std::optional<int64_t> max_steps;    ///< caps the recipe too
  std::optional<int64_t> max_epochs;   ///< caps the recipe too
  int64_t max_nonfinite_steps = 10;    ///< skipped in a row, after which all ranks stop (exit 80)
};

TrainOptions read_train_options(ConfigReader in);

}  // namespace lockstep::train
