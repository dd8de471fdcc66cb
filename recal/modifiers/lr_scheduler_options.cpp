#include "recal/modifiers/lr_scheduler_options.h"

#include <optional>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/modifiers/modifier_fields.h"

namespace lockstep::recal {
// Classes and keys have PyTorch's names, as recipes of SparseML write them.
namespace {

constexpr std::string_view kMilestones = "milestones";

std::optional<Decimal> epoch_of(const YAML::Node& node) {
  const std::optional<double> number = node.IsScalar() ? parse_number(node.Scalar()) : std::nullopt;
  if (!number || *number < 0 || *number > kMaxEpoch) return std::nullopt;
  // Exact: a milestone at 0.1 must convert to the same step everywhere.
  return Decimal::parse(node.Scalar());
}

void read_milestones(ConfigReader* kwargs, LrScheduler* rate) {
  kwargs->require(kMilestones);
  const YAML::Node list =
      kwargs->take(kMilestones, "list of epochs", "absolute epochs at which the rate changes");
  if (!list.IsDefined()) return;
  const auto refuse = [&](const YAML::Node& node, const std::string& why) {
    kwargs->faults()->add(kwargs->document().fault_at(
        node, fmt::format("'{}.{}' {}", kwargs->path(), kMilestones, why)));
  };
  if (!list.IsSequence() || list.size() == 0)
    return refuse(list, "must be a list of at least one epoch");
  for (const YAML::Node& item : list) {
    const std::optional<Decimal> epoch = epoch_of(item);
    if (!epoch) return refuse(item, "must hold epochs (decimal numbers, 0 or more)");
    if (!rate->milestones.empty() && *epoch <= rate->milestones.back())
      return refuse(item, fmt::format("must rise: {} follows {}", epoch->text(),
                                      rate->milestones.back().text()));
    rate->milestones.push_back(*epoch);
  }
}

/// Checks milestones against bounds in epochs. Bounds in steps are checked by the timeline, which
/// knows the steps per epoch.
void check_milestones(ConfigReader* kwargs, const Window& window, const LrScheduler& rate) {
  const auto in_epochs = [](const TrainTime& moment) {
    return moment.kind == TrainTime::Kind::kEpoch;
  };
  for (const Decimal& epoch : rate.milestones) {
    const bool too_early = in_epochs(*window.start) && epoch <= window.start->epoch;
    const bool too_late = in_epochs(*window.end) && epoch >= window.end->epoch;
    if (!too_early && !too_late) continue;
    kwargs->fault(
        kMilestones,
        fmt::format("'{}.{}' holds {}, which is not between start_epoch ({}) and end_epoch ({})",
                    kwargs->path(), kMilestones, epoch.text(), window.start->text(),
                    window.end->text()));
  }
}

/// Reads the period of StepLR: `step`, or PyTorch's name `step_size`.
void read_step(ConfigReader* kwargs, Period* period) {
  constexpr std::string_view kHelp = "from one change to the next";
  if (!kwargs->has("step_size")) {
    kwargs->require("step");
    kwargs->read("step", &period->epochs, between(kMinPeriod, kMaxEpoch), kHelp);
    kwargs->take("step_size");
    return;
  }
  if (kwargs->take("step").IsDefined())
    kwargs->fault("step_size", fmt::format("'{}.step' and 'step_size' are both given: keep one of "
                                           "them",
                                           kwargs->path()));
  kwargs->read("step_size", &period->epochs, between(kMinPeriod, kMaxEpoch), kHelp);
}

void read_kwargs(ConfigReader* kwargs, const Window* window, LrScheduler* rate) {
  if (rate->restarts()) {
    read_required(kwargs, "lr_min", &rate->lr_min, at_least(0), "rate at the end of each cycle");
    read_period(kwargs, "cycle_epochs", "length of a cycle", &rate->period);
    return;
  }
  read_required(kwargs, "gamma", &rate->gamma, more_than(0),
                "factor of the learning rate at each change");
  rate->period.epochs = Decimal(1);
  if (rate->name == "StepLR") read_step(kwargs, &rate->period);
  if (rate->is_multi_step()) read_milestones(kwargs, rate);
  if (window != nullptr) check_milestones(kwargs, *window, *rate);
}

}  // namespace

void read_rate_class(ConfigReader* in, const Window* window, LrScheduler* rate) {
  in->require("lr_class");
  in->read_choice("lr_class", &rate->name,
                  {"ExponentialLR", "StepLR", "MultiStepLR", "CosineAnnealingWarmRestarts"},
                  "how the rate falls");
  in->require("lr_kwargs");
  ConfigReader kwargs = in->section("lr_kwargs");
  // A faulty or missing class or map has its fault already.
  if (rate->name.empty() || !in->has("lr_kwargs") || in->node()["lr_kwargs"].IsScalar() ||
      in->node()["lr_kwargs"].IsSequence())
    return;
  read_kwargs(&kwargs, window, rate);
  kwargs.done();
}

std::string LrScheduler::text() const {
  if (restarts()) return fmt::format("down to {} in cycles of {}", lr_min, period.text());
  if (!is_multi_step()) return fmt::format("x{} every {}", gamma, period.text());
  std::vector<std::string> epochs;
  for (const Decimal& epoch : milestones) epochs.push_back(epoch.text());
  return fmt::format("x{} at epochs {}", gamma, fmt::join(epochs, ", "));
}

}  // namespace lockstep::recal
