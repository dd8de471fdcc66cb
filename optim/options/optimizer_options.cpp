// Reader of section `optimizer`: first the type, then only the keys of its rule. The texts are also
// the documentation of the keys.
#include "optim/options/optimizer_options.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::optim {
namespace {

/// Least value for epsilon: smaller numbers are 0 in float32, in which updates are computed.
constexpr double kLeastFloat = 1.2e-38;

bool is_one_of(const std::string& type, std::initializer_list<const char*> types) {
  return std::any_of(types.begin(), types.end(), [&](const char* one) { return type == one; });
}

void read_moments(ConfigReader* in, OptimizerOptions* options) {
  const std::string& type = options->type;
  in->read("adam_beta1", &options->adam_beta1, half_open(0, 1),
           type + (type == "lion" ? ": share of the moment in the update's direction"
                                  : ": decay of the first moment"));
  in->read("adam_beta2", &options->adam_beta2, half_open(0, 1),
           type + (type == "lion" ? ": decay of the moment" : ": decay of the second moment"));
}

void read_epsilon(ConfigReader* in, OptimizerOptions* options) {
  const std::string& type = options->type;
  std::string place = ": added to the root, before bias correction as in TensorFlow";
  if (type == "adamw") place = ": added to the root, after bias correction";
  if (type == "adadelta") place = ": added to both means under their roots";
  if (type == "rmsprop") place = ": added to the mean square under the root";
  in->read("opt_epsilon", &options->opt_epsilon, at_least(kLeastFloat), type + place);
}

void read_ftrl(ConfigReader* in, OptimizerOptions* options) {
  in->read("ftrl_learning_rate_power", &options->ftrl_learning_rate_power, {.at_most = 0},
           "ftrl: power of the sum of squares by which the rate is multiplied");
  in->read("ftrl_initial_accumulator_value", &options->ftrl_initial_accumulator_value, at_least(0),
           "ftrl: what the sum of squares starts with");
  in->read("ftrl_l1", &options->ftrl_l1, at_least(0), "ftrl: strength of L1");
  in->read("ftrl_l2", &options->ftrl_l2, at_least(0), "ftrl: strength of L2");
}

void read_rule(ConfigReader* in, OptimizerOptions* options) {
  const std::string& type = options->type;
  if (type == "momentum") {
    in->read("momentum", &options->momentum, half_open(0, 1),
             "momentum: share of the last update that is kept");
    in->read("nesterov", &options->nesterov, "momentum: look ahead by one update");
  }
  if (is_one_of(type, {"adam", "adamw", "lion"})) read_moments(in, options);
  if (is_one_of(type, {"adam", "adamw", "adadelta", "rmsprop"})) read_epsilon(in, options);
  if (type == "adadelta")
    in->read("adadelta_rho", &options->adadelta_rho, half_open(0, 1),
             "adadelta: decay of both means");
  if (type == "adagrad")
    in->read("adagrad_initial_accumulator_value", &options->adagrad_initial_accumulator_value,
             at_least(kLeastFloat), "adagrad: what the sum of squares starts with");
  if (type == "rmsprop") {
    in->read("rmsprop_decay", &options->rmsprop_decay, half_open(0, 1),
             "rmsprop: decay of the mean square");
    in->read("rmsprop_momentum", &options->rmsprop_momentum, half_open(0, 1),
             "rmsprop: share of the last update that is kept");
  }
  if (type == "ftrl") read_ftrl(in, options);
}

void read_weight_decay(ConfigReader* in, OptimizerOptions* options) {
  in->read("weight_decay", &options->weight_decay, at_least(0),
           "on the parameters of weight_decay_groups; L2 unless decoupled; a recipe may change it");
  in->read("weight_decay_groups", &options->weight_decay_groups,
           "parameters with decay, of: weights, normalisation, biases; default weights");
  for (const std::string& group : options->weight_decay_groups)
    if (!is_one_of(group, {"weights", "normalisation", "biases"}))
      in->fault("weight_decay_groups",
                fmt::format("'{}' is not a group: use weights, normalisation or biases", group));
  in->read("weight_decay_exclude", &options->weight_decay_exclude,
           "weights without decay: a list of names, each with all below it, or re: patterns");
  // For these types the kind of weight decay is part of the rule.
  if (!is_one_of(options->type, {"adamw", "lion", "ftrl"}))
    in->read("decoupled", &options->decoupled,
             "weight decay multiplies the weights by 1 - rate * weight_decay, apart from the "
             "update; otherwise it is added to the gradient");
}

}  // namespace

const std::vector<std::string>& optimizer_types() {
  static const std::vector<std::string> types{"sgd",     "momentum", "adam",    "adamw", "adadelta",
                                              "adagrad", "ftrl",     "rmsprop", "lion"};
  return types;
}

OptimizerOptions default_options(const std::string& type) {
  OptimizerOptions options{.type = type};
  // Defaults of PyTorch (adamw), TensorFlow (adadelta, rmsprop) and the paper (lion).
  if (is_one_of(type, {"adamw", "adadelta"})) options.opt_epsilon = 1e-8;
  if (type == "rmsprop") options.opt_epsilon = 1e-10;
  if (type == "lion") options.adam_beta2 = 0.99;
  options.decoupled = is_one_of(type, {"adamw", "lion"});
  return options;
}

OptimizerOptions read_optimizer_options(ConfigReader in) {
  std::string type = OptimizerOptions().type;
  in.read_choice("type", &type, optimizer_types(), "update rule (docs/optimizers.md)");
  OptimizerOptions options = default_options(type);
  in.read("learning_rate", &options.learning_rate, more_than(0),
          "before the first step; a recipe may change it");
  read_learning_rate_decay(&in, &options.decay);
  read_rule(&in, &options);
  read_weight_decay(&in, &options);
  in.read("clip_value", &options.clip.value, more_than(0),
          "each element of the mean gradient is kept within plus and minus this");
  in.read("clip_norm", &options.clip.norm, more_than(0),
          "the whole mean gradient is shortened to this length, before clip_value");
  in.read("ema_decay", &options.ema_decay,
          Range{.at_least = {}, .more_than = 0, .at_most = {}, .less_than = 1},
          "a moving average of the weights keeps this share of itself at each update; default no "
          "average");
  in.done();
  return options;
}

StepRates initial_rates(const OptimizerOptions& options) {
  StepRates rates;
  for (GroupRates& group : rates) group.learning_rate = options.learning_rate;
  // Parameters of weight_decay_groups form the weight group, so others have no decay.
  rates[kWeightGroup].weight_decay = options.weight_decay;
  return rates;
}

}  // namespace lockstep::optim
