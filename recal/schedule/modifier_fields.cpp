#include "recal/schedule/modifier_fields.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "recal/schedule/timeline.h"

namespace lockstep::recal {
// Modifiers share these readers so that equal keys have equal rules, help texts and messages. Every
// reader takes its keys even if their values are unusable. Otherwise in->done() would report them
// as unknown.
namespace {

bool is_minus_one(const YAML::Node& node) {
  return node.IsScalar() && parse_number(node.Scalar()) == -1.0;
}

/// Start of the run as epoch 0, or the run's end.
TrainTime minus_one(MinusOne meaning) {
  return meaning == MinusOne::kRunEnd ? TrainTime::run_end() : TrainTime::at_epoch(Decimal());
}

/// Marks both keys as known. Returns true if exactly one of them is present.
bool choose_twin(ConfigReader* in, const std::string& key, const std::string& twin,
                 bool is_required) {
  const bool has_key = in->take(key).IsDefined();
  const bool has_twin = in->take(twin).IsDefined();
  if (has_key && has_twin)
    in->fault(twin, fmt::format("'{}.{}' and '{}' are both given: keep one of them", in->path(),
                                key, twin));
  if (!has_key && !has_twin && is_required)
    in->refuse(key, fmt::format("(or '{}') is required", twin));
  return has_key != has_twin;
}

/// Name of a period's key in steps: cycle_epochs -> cycle_steps, update_frequency ->
/// update_frequency_steps.
std::string twin_of_period(std::string_view name) {
  constexpr std::string_view kEpochs = "_epochs";
  const bool ends_so = name.ends_with(kEpochs);
  return std::string(ends_so ? name.substr(0, name.size() - kEpochs.size()) : name) + "_steps";
}

/// Text of a mask type. [1, 4] is a YAML list.
std::string mask_text(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::vector<std::string> items;
  if (node.IsSequence())
    for (const YAML::Node& item : node) items.push_back(item.IsScalar() ? item.Scalar() : "?");
  return fmt::format("[{}]", fmt::join(items, ", "));
}

bool is_after(const TrainTime& end, const TrainTime& start) {
  if (start.kind != end.kind || end.is_run_end()) return true;  // compared later, by the timeline
  return end.kind == TrainTime::Kind::kStep ? start.step < end.step : start.epoch < end.epoch;
}

}  // namespace

bool read_moment(ConfigReader* in, const MomentKey& key, std::optional<TrainTime>* value) {
  const std::string step_key = std::string(key.name) + "_step";
  std::string epoch_key = std::string(key.name) + "_epoch";
  // `start` replaces start_epoch as the key from here on, so faults name what the recipe contains.
  const bool is_short = (key.name == "start" || key.name == "end") && in->has(key.name);
  if (is_short && choose_twin(in, std::string(key.name), epoch_key, false)) epoch_key = key.name;
  if (key.is_minus_one_by_default && lacks_moment(*in, key.name)) {
    // take() marks the keys as known, so that a typo nearby can be matched against them.
    in->take(epoch_key);
    in->take(step_key);
    *value = minus_one(key.minus_one);
    return true;
  }
  const bool is_required = key.is_required && !key.is_minus_one_by_default;
  if (!choose_twin(in, epoch_key, step_key, is_required)) return false;
  const bool in_steps = in->has(step_key);
  if (key.minus_one != MinusOne::kRefused &&
      is_minus_one(in->take(in_steps ? step_key : epoch_key))) {
    *value = minus_one(key.minus_one);
    return true;
  }
  // Both units stay as written. The timeline converts them once the steps per epoch are known.
  TrainTime moment{.kind = in_steps ? TrainTime::Kind::kStep : TrainTime::Kind::kEpoch};
  const bool good = in_steps ? in->read(step_key, &moment.step, between(0, kMaxStep), key.help)
                             : in->read(epoch_key, &moment.epoch, between(0, kMaxEpoch), key.help);
  if (good) *value = moment;
  return good;
}

bool lacks_moment(const ConfigReader& in, std::string_view name) {
  const std::string text(name);
  return !in.has(text) && !in.has(text + "_epoch") && !in.has(text + "_step");
}

bool read_window(ConfigReader* in, Window* window, Bounds bounds) {
  const bool has_start = read_moment(in,
                                     {.name = "start",
                                      .help = "first epoch of activity, from 0; fractions allowed",
                                      .is_required = bounds != Bounds::kOptional,
                                      .minus_one = MinusOne::kRunStart},
                                     &window->start);
  const bool has_end = read_moment(in,
                                   {.name = "end",
                                    .help = "activity ends before this epoch",
                                    .is_required = bounds != Bounds::kOptional,
                                    .minus_one = MinusOne::kRunEnd,
                                    .is_minus_one_by_default = bounds == Bounds::kEndByDefault},
                                   &window->end);
  // An open bound has nothing to compare with.
  if (!has_start || !has_end) return false;
  if (is_after(*window->end, *window->start)) return true;
  const bool in_steps = in->has("end_step");
  const std::string unit = in_steps ? "step" : "epoch";
  in->fault(
      in->has("end") ? "end" : "end_" + unit,
      fmt::format("'{}.end_{}' is {}, it must be greater than start_{} ({})", in->path(), unit,
                  in_steps ? std::to_string(window->end->step) : window->end->epoch.text(), unit,
                  in_steps ? std::to_string(window->start->step) : window->start->epoch.text()));
  return false;
}

bool read_start(ConfigReader* in, std::string_view help, Window* window) {
  const bool is_default = lacks_moment(*in, "start");
  read_moment(in,
              {.name = "start",
               .help = help,
               .minus_one = MinusOne::kRunStart,
               .is_minus_one_by_default = true},
              &window->start);
  return is_default;
}

bool read_period(ConfigReader* in, std::string_view name, std::string_view help, Period* period,
                 bool is_required) {
  const std::string key(name);
  const std::string twin = twin_of_period(name);
  if (!choose_twin(in, key, twin, is_required)) return false;
  Period read;
  const bool good = in->has(twin)
                        ? in->read(twin, &read.steps, between(1, kMaxStep), help)
                        : in->read(key, &read.epochs, between(kMinPeriod, kMaxEpoch), help);
  if (good) *period = read;
  return good;
}

bool read_update_frequency(ConfigReader* in, Period* period) {
  constexpr std::string_view kKey = "update_frequency";
  if (is_minus_one(in->take(kKey))) {
    in->take("update_frequency_steps");
    in->fault(kKey, fmt::format("'{}.update_frequency' is -1: for an update at every step write "
                                "update_frequency_steps: 1; once an epoch (1.0) is usual",
                                in->path()));
    return false;
  }
  return read_period(in, kKey, "from one update to the next; usual: 1.0", period);
}

void read_minus_one(ConfigReader* in, std::string_view key, std::string_view why) {
  const YAML::Node node = in->take(key);
  if (node.IsDefined() && !is_minus_one(node))
    in->refuse(key, fmt::format("may only be -1: {}", why));
}

void read_no_end(ConfigReader* in, std::string_view why) {
  if (in->has("end")) read_minus_one(in, "end", why);
  read_minus_one(in, "end_epoch", why);
  read_minus_one(in, "end_step", why);
}

bool read_required(ConfigReader* in, std::string_view key, double* value, Range range,
                   std::string_view help) {
  in->require(key);
  return in->read(key, value, range, help);
}

bool read_param_value(ConfigReader* in, std::string_view key, double* value,
                      std::string_view help) {
  // Weights may have a narrower type: the manager compares with each parameter's type in attach().
  constexpr double kMost = std::numeric_limits<float>::max();
  return read_required(in, key, value, between(-kMost, kMost), help);
}

bool read_param_groups(ConfigReader* in, ParamGroups* groups) {
  constexpr std::string_view kKey = "param_groups";
  constexpr double kMostGroups = 1000;
  std::vector<int64_t> numbers;
  if (!in->has(kKey)) return in->take(kKey), true;
  if (!in->read(kKey, &numbers, between(0, kMostGroups - 1),
                "optimizer groups: 0 = weights, which decay; 1 = the rest"))
    return false;
  if (numbers.empty()) {
    in->fault(kKey, fmt::format("'{}.param_groups' must name a group; available: {}", in->path(),
                                known_param_groups()));
    return false;
  }
  // Sorted and unique, so that equal lists in another order make equal timelines.
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  groups->numbers.assign(numbers.begin(), numbers.end());
  return true;
}

void read_constant_logging(ConfigReader* in) {
  bool ignored = false;
  in->read("constant_logging", &ignored, "without effect: summaries always contain the value");
}

bool is_written(const ConfigReader& in, std::string_view key) {
  const YAML::Node& map = in.node();
  return map.IsMap() && map[std::string(key)].IsDefined();
}

void read_logging(ConfigReader* in) {
  ParamLogs ignored = ParamLogs::kByDefault;
  read_constant_logging(in);
  read_log_types(in, &ignored);
}

void read_mask_kind(ConfigReader* in, MaskKind* kind) {
  const YAML::Node node =
      in->take("mask_type", "unstructured, block4, N:M, 2:4 transposable, filter or channel",
               "which weights are pruned together");
  if (!node.IsDefined()) return;
  const std::string text = mask_text(node);
  if (const std::optional<MaskKind> read = MaskKind::parse(text)) {
    *kind = *read;
    return;
  }
  in->refuse(
      "mask_type",
      fmt::format("must be unstructured, block4 (or [1, N]: blocks of N inputs of one output, N <= "
                  "64), N:M such as 2:4 with 0 < N < M <= 64, 2:4 transposable, filter or channel, "
                  "not '{}'",
                  text));
}

void read_params_strict(ConfigReader* in, bool* strict) {
  in->read("params_strict", strict, "whether an entry of params must select something");
}

void read_log_types(ConfigReader* in, ParamLogs* logs) {
  const YAML::Node node = in->take("log_types", "__ALL__, none or a list",
                                   "true: separate summaries for each parameter");
  if (!node.IsDefined()) return;
  if (node.IsNull() || (node.IsScalar() && node.Scalar() == "none") ||
      (node.IsSequence() && node.size() == 0)) {
    *logs = ParamLogs::kNowhere;
  } else if (node.IsSequence() || (node.IsScalar() && node.Scalar() == "__ALL__")) {
    *logs = ParamLogs::kEverywhere;
  } else {
    in->refuse("log_types", "must be __ALL__, none or a list of names");
  }
}

}  // namespace lockstep::recal
