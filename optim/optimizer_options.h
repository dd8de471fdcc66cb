#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exact_numbers.h"
#include "base/tensors/param_info.h"
#include "base/yaml/config_reader.h"

/// Section `optimizer` of the run file: rule, schedule of the rate, clipping.
namespace lockstep::optim {

/// Schedule of the optimizer itself: key `learning_rate_decay_type` and the keys after it.
///
///   fixed        rate
///   exponential  rate * factor^(s / d), the exponent rounded down if `staircase`
///   polynomial   (rate - end) * (1 - min(s, n) / n)^power + end
///   cosine       rate * s / w while s < w, then
///                (rate - end) * (1 + cos(pi * min(s - w, n) / n)) / 2 + end
///   wsd          rate * s / w while s < w, rate until the last n steps of the run, then
///                (rate - end) * (1 - (steps of the decay so far / n)^power) + end
///
/// s: updates done. d = round(num_epochs_per_decay * steps per epoch), at least 1. n: decay_steps
/// if given, else d if num_epochs_per_decay is given, else the steps of the run (cosine: minus w;
/// wsd: a fifth of them).
/// w: warmup_steps, or warmup_epochs in steps. Sources: tf.compat.v1.train.exponential_decay,
/// polynomial_decay and cosine_decay; Loshchilov & Hutter 2017 (SGDR), without restarts; Hägele et
/// al. 2024 (wsd: warm-up, stable, decay; a trapezoid with power 1).
struct LearningRateDecay {
  std::string type = "fixed";  ///< fixed | exponential | polynomial | cosine | wsd
  double factor = 0.94;
  std::optional<double> num_epochs_per_decay;  ///< exponential: always set
  std::optional<int64_t> decay_steps;          ///< polynomial, cosine, wsd
  std::optional<int64_t> warmup_steps;         ///< cosine, wsd; not with warmup_epochs
  std::optional<double> warmup_epochs;         ///< cosine, wsd
  bool staircase = true;
  double end_learning_rate = 0.0001;
  double power = 1.0;
};

void read_learning_rate_decay(ConfigReader* in, LearningRateDecay* decay);

/// Returns the rate of update `step` (from 0): a pure function, the same on every rank and after a
/// resume.
double decayed_rate(const LearningRateDecay& decay, double learning_rate, int64_t step,
                    int64_t steps_per_epoch, int64_t total_steps);

/// Keys clip_norm and clip_value of section `optimizer`.
struct ClipOptions {
  std::optional<double> value;  ///< > 0: each element is limited to ± this
  std::optional<double> norm;   ///< > 0: limit on the norm of all gradients together
};

/// Section `optimizer` of the run file. docs/optimizers.md has the formulas and each type's keys.
struct OptimizerOptions {
  std::string type = "momentum";  ///< a name of optimizer_types()
  double learning_rate = 0.01;
  LearningRateDecay decay;  ///< of the rate, if no recipe sets it
  /// Factors of the rate by names or `re:` patterns (recal/schedule/param_choices.h).
  std::vector<std::pair<std::string, double>> learning_rate_multipliers;
  double momentum = 0.9;
  bool nesterov = false;
  int64_t ns_steps = 5;                       ///< muon
  std::string adjust_lr_fn = "original";      ///< muon: original | match_rms_adamw
  std::optional<double> normuon_beta2;        ///< muon; set: NorMuon
  std::vector<std::string> muon_params;       ///< names, `re:` patterns; empty: the default
  std::optional<double> adamw_learning_rate;  ///< muon: of all that is no matrix
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;  ///< default depends on the type: default_options()
  double opt_epsilon = 1e-7;  ///< as adam_beta2
  double adadelta_rho = 0.95;
  double rmsprop_decay = 0.9;
  double rmsprop_momentum = 0.9;
  double adagrad_initial_accumulator_value = 0.1;
  double ftrl_initial_accumulator_value = 0.1;
  double ftrl_learning_rate_power = -0.5;
  double ftrl_l1 = 0.0, ftrl_l2 = 0.0;
  std::string state_dtype = "float32";     ///< float32 | int8: type of the moments
  double weight_decay = 0.0;               ///< on the parameters of weight_decay_groups
  std::optional<double> end_weight_decay;  ///< at the run's end, along a cosine; unset: constant
  bool decoupled = false;  ///< weights are multiplied by 1 - rate * weight_decay; else decay is L2
  std::vector<std::string> weight_decay_groups{"weights"};  ///< weights, normalisation, biases
  std::vector<std::string> weight_decay_exclude;  ///< names, `re:` patterns of weights without it
  ClipOptions clip;                               ///< of the gradients, before the update
  std::optional<double> ema_decay;                ///< of the moving average of the weights (Ema)
};

/// Names of the update rules.
const std::vector<std::string>& optimizer_types();

/// Returns the default values of a type, for options whose default depends on it.
OptimizerOptions default_options(const std::string& type);

OptimizerOptions read_optimizer_options(ConfigReader in);

/// Rates of one update, by parameter group.
struct GroupRates {
  double learning_rate = 0;
  double weight_decay = 0;

  bool operator==(const GroupRates&) const = default;
};
using StepRates = std::array<GroupRates, kNumParamGroups>;

/// Returns the weight decay of update `step` (from 0) of a run of total_steps, like decayed_rate().
/// With w and e for weight_decay and end_weight_decay: e + (w - e) (1 + cos(pi step / total)) / 2,
/// as in Caron et al. 2021 (DINO).
double weight_decay_at(const OptimizerOptions& options, int64_t step, int64_t total_steps);

/// Returns the options' own rates at step 0: weight decay for the weights' group only.
StepRates initial_rates(const OptimizerOptions& options);

}  // namespace lockstep::optim
