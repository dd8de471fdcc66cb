#include "recal/learning_rate.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/timeline_builder.h"

namespace lockstep::recal {
namespace {

const std::vector<std::string>& lr_classes() {
  static const std::vector<std::string> names{"ExponentialLR", "StepLR", "MultiStepLR"};
  return names;
}

std::optional<Decimal> epoch_of(const YAML::Node& node) {
  const std::optional<double> number = node.IsScalar() ? parse_number(node.Scalar()) : std::nullopt;
  if (!number || *number < 0 || *number > kMaxEpoch) return std::nullopt;
  return Decimal::parse(node.Scalar());
}

void read_milestones(YamlFields* kwargs, LearningRateOptions* options) {
  constexpr std::string_view kKey = "milestones";
  kwargs->require(kKey);
  const YAML::Node list =
      kwargs->take(kKey, "list of epochs", "absolute epochs at which the rate changes");
  if (!list.IsDefined()) return;
  const auto refuse = [&](const YAML::Node& node, const std::string& why) {
    kwargs->faults()->add(
        kwargs->document().fault_at(node, fmt::format("'{}.{}' {}", kwargs->path(), kKey, why)));
  };
  if (!list.IsSequence() || list.size() == 0)
    return refuse(list, "must be a list of at least one epoch");
  for (const YAML::Node& item : list) {
    const std::optional<Decimal> epoch = epoch_of(item);
    if (!epoch) return refuse(item, "must hold epochs (decimal numbers, 0 or more)");
    if (!options->milestones.empty() && *epoch <= options->milestones.back())
      return refuse(item, fmt::format("must rise: {} follows {}", epoch->text(),
                                      options->milestones.back().text()));
    options->milestones.push_back(*epoch);
  }
}

void check_milestones(YamlFields* kwargs, const LearningRateOptions& options) {
  for (const Decimal& epoch : options.milestones)
    if (epoch <= options.start_epoch || epoch >= options.end_epoch)
      kwargs->fault(
          "milestones",
          fmt::format(
              "'{}.milestones' holds {}, which is not between start_epoch ({}) and end_epoch ({})",
              kwargs->path(), epoch.text(), options.start_epoch.text(), options.end_epoch.text()));
}

void read_kwargs(YamlFields* in, bool window_is_good, LearningRateOptions* options) {
  in->require("lr_kwargs");
  YamlFields kwargs = in->section("lr_kwargs");
  if (options->lr_class.empty() || !in->has("lr_kwargs") || in->node()["lr_kwargs"].IsScalar() ||
      in->node()["lr_kwargs"].IsSequence())
    return;
  read_required(&kwargs, "gamma", &options->gamma, more_than(0),
                "factor of the learning rate at each change");
  if (options->lr_class == "StepLR")
    read_period(&kwargs, "step", &options->period, "epochs from one change to the next");
  if (options->lr_class == "MultiStepLR") read_milestones(&kwargs, options);
  if (window_is_good) check_milestones(&kwargs, *options);
  kwargs.done();
}

/// By multiplications alone, so that the bits do not depend on the C library.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

}  // namespace

std::unique_ptr<Modifier> LearningRate::read(YamlFields* in, Place place) {
  LearningRateOptions options;
  const bool window_is_good = read_window(in, &options.start_epoch, &options.end_epoch);
  in->require("lr_class");
  in->read_choice("lr_class", &options.lr_class, lr_classes(), "how the rate falls");
  read_kwargs(in, window_is_good, &options);
  in->read("init_lr", &options.init_lr, more_than(0),
           "rate at start_epoch; none: the optimizer's own");
  in->done();
  return std::make_unique<LearningRate>(std::move(options), std::move(place));
}

std::string LearningRate::summary() const {
  const std::string first =
      options_.init_lr ? fmt::format("from {}", *options_.init_lr) : "from the optimizer's rate";
  if (options_.lr_class != "MultiStepLR")
    return fmt::format("{} {}, x{} every {} epoch(s)", options_.lr_class, first, options_.gamma,
                       options_.period.text());
  std::vector<std::string> epochs;
  for (const Decimal& epoch : options_.milestones) epochs.push_back(epoch.text());
  return fmt::format("{} {}, x{} at epochs {}", options_.lr_class, first, options_.gamma,
                     fmt::join(epochs, ", "));
}

void LearningRate::contribute(TimelineBuilder* builder) const {
  const int64_t start_step = builder->step_of(options_.start_epoch);
  const int64_t end_step = builder->step_of(options_.end_epoch);
  if (start_step == end_step)
    return;  // shorter than a step: the timeline warns that it never fires
  builder->claim_learning_rate(start_step, end_step);
  const double base = options_.init_lr.value_or(builder->base_learning_rate());
  if (options_.lr_class != "MultiStepLR") {
    for (const auto& [k, step] :
         builder->updates(options_.start_epoch, options_.period, options_.end_epoch))
      builder->add(step, ActionKind::kSetLearningRate, base * power(options_.gamma, k));
    return;
  }
  builder->add(start_step, ActionKind::kSetLearningRate, base);
  for (size_t i = 0; i < options_.milestones.size(); ++i) {
    const int64_t step = builder->step_of(options_.milestones[i]);
    if (step < end_step)
      builder->add(step, ActionKind::kSetLearningRate,
                   base * power(options_.gamma, static_cast<int64_t>(i) + 1));
  }
}

}  // namespace lockstep::recal
