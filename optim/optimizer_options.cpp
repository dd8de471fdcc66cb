// Reader of section `optimizer`, and schedules of the rate.
#include "optim/optimizer_options.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::optim {

// Schedules: pure functions of the step, so nothing is saved and all ranks compute the same.

namespace {

constexpr double kDefaultEpochsPerDecay = 2.0;

/// Computes in long double. The C library selects its double functions by processor (with or
/// without fused products), and their last bits differ. So ranks on different hosts would diverge.
/// Its long double functions have one version.
double portable_cos_pi(double x) {
  return static_cast<double>(std::cos(std::numbers::pi_v<long double> * x));
}
double portable_pow(double base, double exponent) {
  return static_cast<double>(std::pow(static_cast<long double>(base), exponent));
}

double steps_per_decay(double num_epochs, int64_t steps_per_epoch) {
  return std::max(1.0, std::round(num_epochs * static_cast<double>(steps_per_epoch)));
}

/// Returns the number of steps from the first rate of a polynomial to the last.
double polynomial_steps(const LearningRateDecay& decay, int64_t steps_per_epoch,
                        int64_t total_steps) {
  if (decay.decay_steps) return static_cast<double>(*decay.decay_steps);
  if (decay.num_epochs_per_decay)
    return steps_per_decay(*decay.num_epochs_per_decay, steps_per_epoch);
  return static_cast<double>(std::max<int64_t>(total_steps, 1));
}

double warmup_steps(const LearningRateDecay& decay, int64_t steps_per_epoch) {
  if (decay.warmup_epochs)
    return std::round(*decay.warmup_epochs * static_cast<double>(steps_per_epoch));
  return static_cast<double>(decay.warmup_steps.value_or(0));
}

double cosine_rate(const LearningRateDecay& decay, double learning_rate, double step,
                   int64_t steps_per_epoch, int64_t total_steps) {
  const double warmup = warmup_steps(decay, steps_per_epoch);
  // The first update has rate 0, as in the formula of LearningRateDecay.
  if (step < warmup) return learning_rate * step / warmup;
  const double all = std::max(1.0, decay.decay_steps ? static_cast<double>(*decay.decay_steps)
                                                     : static_cast<double>(total_steps) - warmup);
  const double done = std::min(step - warmup, all) / all;
  return (learning_rate - decay.end_learning_rate) * (1 + portable_cos_pi(done)) / 2 +
         decay.end_learning_rate;
}

double wsd_rate(const LearningRateDecay& decay, double learning_rate, double step,
                int64_t steps_per_epoch, int64_t total_steps) {
  const double warmup = warmup_steps(decay, steps_per_epoch);
  if (step < warmup) return learning_rate * step / warmup;
  const auto all = static_cast<double>(std::max<int64_t>(total_steps, 1));
  const double wanted =
      decay.decay_steps ? static_cast<double>(*decay.decay_steps) : std::ceil(all / 5);
  // The phases do not overlap: a shorter run has a shorter decay.
  const double decaying = std::min(wanted, std::max(1.0, all - warmup));
  const double done = std::clamp(step - (all - decaying), 0.0, decaying) / decaying;
  return (learning_rate - decay.end_learning_rate) * (1 - portable_pow(done, decay.power)) +
         decay.end_learning_rate;
}

void read_exponential(ConfigReader* in, LearningRateDecay* decay) {
  in->read("learning_rate_decay_factor", &decay->factor, more_than(0),
           "exponential: factor of each decay");
  double num_epochs = kDefaultEpochsPerDecay;
  in->read("num_epochs_per_decay", &num_epochs, more_than(0),
           "exponential: epochs between decays; polynomial: epochs of decay, default the whole "
           "run");
  decay->num_epochs_per_decay = num_epochs;
  in->read("staircase", &decay->staircase, "exponential: decay in discrete steps");
}

void read_polynomial(ConfigReader* in, LearningRateDecay* decay) {
  in->read("end_learning_rate", &decay->end_learning_rate, at_least(0),
           "polynomial: final learning rate");
  in->read("decay_steps", &decay->decay_steps, count_from(1),
           "polynomial: updates of decay; overrides num_epochs_per_decay");
  in->read("num_epochs_per_decay", &decay->num_epochs_per_decay, more_than(0),
           "polynomial: epochs of decay; default the whole run");
  in->read("power", &decay->power, more_than(0), "polynomial: exponent; 1: linear");
}

/// Reads the keys of cosine and wsd.
void read_warmup_and_decay(ConfigReader* in, LearningRateDecay* decay) {
  decay->end_learning_rate = 0;
  in->read("end_learning_rate", &decay->end_learning_rate, at_least(0),
           "cosine, wsd: final learning rate");
  in->read("decay_steps", &decay->decay_steps, count_from(1),
           "cosine: updates of decay after the warm-up, default the rest of the run; wsd: the last "
           "updates of the run, default a fifth");
  if (decay->type == "wsd")
    in->read("power", &decay->power, more_than(0), "wsd: exponent; 1: linear, 0.5: 1 - root");
  in->read("warmup_steps", &decay->warmup_steps, count_from(0),
           "cosine, wsd: updates of linear warm-up from 0");
  in->read("warmup_epochs", &decay->warmup_epochs, at_least(0),
           "cosine, wsd: epochs of linear warm-up from 0, instead of warmup_steps");
  if (decay->warmup_steps && decay->warmup_epochs)
    in->fault("warmup_epochs", "'warmup_steps' and 'warmup_epochs' are both given: keep one");
}

}  // namespace

void read_learning_rate_decay(ConfigReader* in, LearningRateDecay* decay) {
  in->read_choice("learning_rate_decay_type", &decay->type,
                  {"fixed", "exponential", "polynomial", "cosine", "wsd"},
                  "built-in schedule; must be fixed with a recipe that sets the learning rate");
  if (decay->type == "exponential") read_exponential(in, decay);
  if (decay->type == "polynomial") read_polynomial(in, decay);
  if (decay->type == "cosine" || decay->type == "wsd") read_warmup_and_decay(in, decay);
}

double decayed_rate(const LearningRateDecay& decay, double learning_rate, int64_t step,
                    int64_t steps_per_epoch, int64_t total_steps) {
  if (decay.type == "exponential") {
    const double exponent =
        static_cast<double>(step) /
        steps_per_decay(decay.num_epochs_per_decay.value_or(kDefaultEpochsPerDecay),
                        steps_per_epoch);
    return learning_rate *
           portable_pow(decay.factor, decay.staircase ? std::floor(exponent) : exponent);
  }
  if (decay.type == "polynomial") {
    const double all = polynomial_steps(decay, steps_per_epoch, total_steps);
    // After the last step of the decay the rate stays at its end value.
    const double left = 1 - std::min(static_cast<double>(step), all) / all;
    return (learning_rate - decay.end_learning_rate) * portable_pow(left, decay.power) +
           decay.end_learning_rate;
  }
  if (decay.type == "wsd")
    return wsd_rate(decay, learning_rate, static_cast<double>(step), steps_per_epoch, total_steps);
  if (decay.type == "cosine")
    return cosine_rate(decay, learning_rate, static_cast<double>(step), steps_per_epoch,
                       total_steps);
  return learning_rate;
}

// Section `optimizer`: first the type, then only the keys of its rule. The texts are also the
// documentation of the keys.

/// Least value for epsilon: smaller numbers are 0 in float32, in which updates are computed.
constexpr double kLeastFloat = 1.2e-38;

static bool is_one_of(const std::string& type, std::initializer_list<const char*> types) {
  return std::any_of(types.begin(), types.end(), [&](const char* one) { return type == one; });
}

static void read_moments(ConfigReader* in, OptimizerOptions* options) {
  const std::string& type = options->type;
  in->read("adam_beta1", &options->adam_beta1, half_open(0, 1),
           type + (type == "lion" ? ": weight of the moment in the update"
                                  : ": decay of the first moment"));
  in->read("adam_beta2", &options->adam_beta2, half_open(0, 1),
           type + (type == "lion" ? ": decay of the moment" : ": decay of the second moment"));
}

static void read_epsilon(ConfigReader* in, OptimizerOptions* options) {
  const std::string& type = options->type;
  std::string place = ": epsilon, before bias correction as in TensorFlow";
  if (is_one_of(type, {"adamw", "muon"})) place = ": epsilon of AdamW, after bias correction";
  if (type == "adadelta") place = ": epsilon of both averages, under the root";
  if (type == "rmsprop") place = ": epsilon, under the root";
  in->read("opt_epsilon", &options->opt_epsilon, at_least(kLeastFloat), type + place);
}

static void read_ftrl(ConfigReader* in, OptimizerOptions* options) {
  in->read("ftrl_learning_rate_power", &options->ftrl_learning_rate_power, {.at_most = 0},
           "ftrl: exponent of the accumulator in the learning rate");
  in->read("ftrl_initial_accumulator_value", &options->ftrl_initial_accumulator_value, at_least(0),
           "ftrl: initial accumulator value");
  in->read("ftrl_l1", &options->ftrl_l1, at_least(0), "ftrl: L1 strength");
  in->read("ftrl_l2", &options->ftrl_l2, at_least(0), "ftrl: L2 strength");
}

static void read_muon(ConfigReader* in, OptimizerOptions* options) {
  in->read("muon_params", &options->muon_params,
           "muon: weights that are updated as matrices: names with all below them, or re: "
           "patterns; default those of linear and convolution layers but the last");
  in->read("ns_steps", &options->ns_steps, between(1, 99), "muon: Newton-Schulz iterations");
  in->read_choice("adjust_lr_fn", &options->adjust_lr_fn, {"original", "match_rms_adamw"},
                  "muon: factor of the rate, from the matrix' shape");
  in->read("normuon_beta2", &options->normuon_beta2, half_open(0, 1),
           "muon: decay of each row's second moment (NorMuon); default none");
  in->read(
      "adamw_learning_rate", &options->adamw_learning_rate, more_than(0),
      "muon: initial learning rate of AdamW, for all that is no matrix; keeps its proportion to "
      "learning_rate, also in schedules and recipes; default learning_rate");
  if (options->adamw_learning_rate && !in->has("learning_rate"))
    in->refuse("adamw_learning_rate", "needs 'learning_rate', to which it keeps its proportion");
}

static void read_rule(ConfigReader* in, OptimizerOptions* options) {
  const std::string& type = options->type;
  if (is_one_of(type, {"momentum", "muon"})) {
    in->read("momentum", &options->momentum, half_open(0, 1), type + ": momentum coefficient");
    in->read("nesterov", &options->nesterov, type + ": Nesterov momentum");
  }
  if (type == "muon") read_muon(in, options);
  if (is_one_of(type, {"adam", "adamw", "lion", "muon"})) read_moments(in, options);
  if (is_one_of(type, {"adam", "adamw", "adadelta", "rmsprop", "muon"})) read_epsilon(in, options);
  if (is_one_of(type, {"adam", "adamw", "momentum", "muon"}))
    in->read_choice("state_dtype", &options->state_dtype, {"float32", "int8"},
                    type +
                        ": storage type of the moments: float32, or int8 (1 byte per element, "
                        "one scale per block of at most 256; CPUs only; an update takes longer); "
                        "checkpoints store float32");
  if (type == "adadelta")
    in->read("adadelta_rho", &options->adadelta_rho, half_open(0, 1),
             "adadelta: decay of both averages");
  if (type == "adagrad")
    in->read("adagrad_initial_accumulator_value", &options->adagrad_initial_accumulator_value,
             at_least(kLeastFloat), "adagrad: initial accumulator value");
  if (type == "rmsprop") {
    in->read("rmsprop_decay", &options->rmsprop_decay, half_open(0, 1),
             "rmsprop: decay of the mean square");
    in->read("rmsprop_momentum", &options->rmsprop_momentum, half_open(0, 1),
             "rmsprop: momentum coefficient");
  }
  if (type == "ftrl") read_ftrl(in, options);
}

static void read_multipliers(ConfigReader* in, OptimizerOptions* options) {
  const std::string key = "learning_rate_multipliers";
  const YAML::Node map = in->take(
      key, "map",
      "factors of the learning rate by parameter name, parent, or re: pattern; the longest name "
      "counts, else the pattern; also of a recipe's rate");
  if (!map.IsDefined()) return;
  if (!map.IsMap()) return in->refuse(key, "must be a map from names to factors");
  ConfigReader entries(map, in->path() + "." + key, in->document(), in->faults());
  for (const auto& entry : map) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    double factor = 1;
    if (entries.read(name, &factor, more_than(0), ""))
      options->learning_rate_multipliers.emplace_back(name, factor);
  }
}

static void read_weight_decay(ConfigReader* in, OptimizerOptions* options) {
  in->read("weight_decay", &options->weight_decay, at_least(0),
           "weight decay of weight_decay_groups; L2 unless decoupled; a recipe may change it");
  in->read("end_weight_decay", &options->end_weight_decay, at_least(0),
           "weight decay at the run's end, reached along a cosine, until a recipe sets the decay; "
           "default weight_decay");
  in->read("weight_decay_groups", &options->weight_decay_groups,
           "groups with decay: weights, normalisation, biases; default weights");
  for (const std::string& group : options->weight_decay_groups)
    if (!is_one_of(group, {"weights", "normalisation", "biases"}))
      in->fault("weight_decay_groups",
                fmt::format("'{}' is not a group: use weights, normalisation or biases", group));
  in->read("weight_decay_exclude", &options->weight_decay_exclude,
           "weights without decay: names with all below them, or re: patterns");
  // For these types the kind of weight decay is part of the rule.
  if (!is_one_of(options->type, {"adamw", "lion", "ftrl", "muon"}))
    in->read("decoupled", &options->decoupled, "decoupled weight decay, as in AdamW");
}

const std::vector<std::string>& optimizer_types() {
  static const std::vector<std::string> types{"sgd",     "momentum", "adam",    "adamw", "adadelta",
                                              "adagrad", "ftrl",     "rmsprop", "lion",  "muon"};
  return types;
}

OptimizerOptions default_options(const std::string& type) {
  OptimizerOptions options{.type = type};
  // Defaults of PyTorch (adamw), TensorFlow (adadelta, rmsprop) and the paper (lion).
  if (is_one_of(type, {"adamw", "adadelta", "muon"})) options.opt_epsilon = 1e-8;
  if (type == "rmsprop") options.opt_epsilon = 1e-10;
  if (type == "lion") options.adam_beta2 = 0.99;
  if (type == "muon") {
    options.momentum = 0.95;
    options.nesterov = true;
  }
  options.decoupled = is_one_of(type, {"adamw", "lion", "muon"});
  return options;
}

OptimizerOptions read_optimizer_options(ConfigReader in) {
  std::string type = OptimizerOptions().type;
  in.read_choice("type", &type, optimizer_types(), "update rule (docs/optimizers.md)");
  OptimizerOptions options = default_options(type);
  in.read("learning_rate", &options.learning_rate, more_than(0),
          "initial learning rate; a recipe may change it");
  read_learning_rate_decay(&in, &options.decay);
  read_multipliers(&in, &options);
  read_rule(&in, &options);
  read_weight_decay(&in, &options);
  in.read("clip_value", &options.clip.value, more_than(0),
          "limit of each gradient element's absolute value");
  in.read("clip_norm", &options.clip.norm, more_than(0),
          "limit of the gradient's global norm; applied before clip_value");
  in.read("ema_decay", &options.ema_decay,
          Range{.at_least = {}, .more_than = 0, .at_most = {}, .less_than = 1},
          "decay of the moving average of the weights; default no average");
  in.done();
  return options;
}

double weight_decay_at(const OptimizerOptions& options, int64_t step, int64_t total_steps) {
  if (!options.end_weight_decay) return options.weight_decay;
  const double done = std::clamp(
      static_cast<double>(step) / static_cast<double>(std::max<int64_t>(total_steps, 1)), 0.0, 1.0);
  const double end = *options.end_weight_decay;
  return end + (options.weight_decay - end) * (1 + portable_cos_pi(done)) / 2;
}

StepRates initial_rates(const OptimizerOptions& options) {
  StepRates rates;
  for (GroupRates& group : rates) group.learning_rate = options.learning_rate;
  // Parameters of weight_decay_groups form the weight group, so others have no decay.
  rates[kWeightGroup].weight_decay = options.weight_decay;
  return rates;
}

}  // namespace lockstep::optim
