#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/named_table.h"
#include "data/datasets/dataset.h"

/// Losses: what train.loss of a run file may name. Symbols: B = samples, O = the shape of what the
/// network gives for one, Y = the shape of one target.
namespace lockstep::train {

struct LossOptions {
  double label_smoothing = 0;  ///< share of each target that is spread over all classes
};

/// One row. The sum over the samples of each one's loss: a scalar, 0 for no samples. A sum, not a
/// mean: ranks hold different counts, and the sum over ranks is divided once by the global count.
struct LossType {
  std::string name;
  std::vector<data::TargetKind> takes;  ///< kinds of targets
  std::function<at::Tensor(const at::Tensor& outputs_BO, const at::Tensor& targets_BY,
                           const LossOptions& options)>
      value;
  bool repeats_itself = false;  ///< as ModelType's (model/networks/model_table.h)
  /// Targets of data::kIgnoredTarget add nothing to the sum, which is then divided by the number of
  /// the others (Loss::num_counted).
  bool ignores = false;
};

/// The table; a program that embeds Lockstep adds rows of its own before it reads the run file:
///   cross_entropy       class numbers or soft labels; Szegedy et al., arXiv 1512.00567, section 7,
///                       for label_smoothing
///   mean_squared_error  values: the mean over the numbers of a target
///   binary              values in [0, 1] from logits: cross-entropy, the mean over the numbers
///   next_token          tokens: cross-entropy, the mean over the tokens of a sample; ignored ones
///                       count neither in the sum nor in what it is divided by
NamedTable<LossType>& loss_types();

/// A loss with its options, for data of one kind.
class Loss {
 public:
  /// `name`: a row of the table; auto: cross_entropy, mean_squared_error or next_token, by the
  /// targets; own: the network's. Throws Error(kConfig) if that loss does not take such targets, or
  /// if its targets are not classes and label_smoothing is above 0.
  Loss(const std::string& name, const LossOptions& options, const data::SampleSpec& spec);

  /// Model::own_loss() is to be asked instead of sum().
  bool is_own() const { return type_ == nullptr; }
  bool repeats_itself() const { return type_ != nullptr && type_->repeats_itself; }
  /// True if targets of a batch may be ignored.
  bool may_ignore() const { return type_ != nullptr && type_->ignores && spec_.may_ignore; }

  /// Outputs of any float type. Throws Error(kConfig) if their shape does not fit the targets'.
  at::Tensor sum(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const;

  /// Divisor that makes the sum over these samples a mean: their number, or, where targets
  /// may be ignored, the share of those that count.
  double num_counted(const at::Tensor& targets_BY) const;

  /// How many samples are right: those whose class, or most probable class, got the highest output;
  /// of tokens, the share of right ones of each sample. Nothing for values.
  std::optional<double> num_correct(const at::Tensor& outputs_BO,
                                    const at::Tensor& targets_BY) const;

 private:
  void require_fit(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const;

  const LossType* type_;  ///< null: own
  LossOptions options_;
  data::SampleSpec spec_;
};

}  // namespace lockstep::train
