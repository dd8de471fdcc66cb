#pragma once

#include <optional>
#include <string_view>

#include "base/yaml/config_reader.h"
#include "recal/params/param_groups.h"
#include "recal/time/train_time.h"
#include "recal/timeline/modifier.h"

/// Readers of keys that several modifiers have. Wrong values become faults; each returns true if
/// its value may be used.
namespace lockstep::recal {

/// Largest epoch and step, and shortest period, that a recipe may name; they keep every step number
/// far inside 64 bits.
inline constexpr double kMaxEpoch = 1e6;
inline constexpr double kMaxStep = 1e15;
inline constexpr double kMinPeriod = 1e-6;

/// What -1 means at a key.
enum class MinusOne { kRefused, kRunStart, kRunEnd };

/// Reads `<name>_epoch` (a decimal, 0 to kMaxEpoch) or its twin `<name>_step` (a whole number, 0 to
/// kMaxStep): at most one of them, exactly one if required. `start` and `end` alone are read as
/// start_epoch and end_epoch, as newer recipes of SparseML write them.
struct MomentKey {
  std::string_view name;  ///< start, end, freeze_bn_stats, ...
  std::string_view help;
  bool is_required = true;
  MinusOne minus_one = MinusOne::kRefused;
  bool is_minus_one_by_default = false;  ///< not required, and -1 where it is missing
};
bool read_moment(ConfigReader* in, const MomentKey& key, std::optional<TrainTime>* value);

/// True if neither the epoch nor the step of this name is given.
bool lacks_moment(const ConfigReader& in, std::string_view name);

/// Reads start (-1: the run's) and end (-1: the run's), start < end. Where they are optional, a
/// missing one leaves the window open there.
enum class Bounds {
  kRequired,
  kOptional,
  kEndByDefault,  ///< the start is required, a missing end is -1
};
bool read_window(ConfigReader* in, Window* window, Bounds bounds = Bounds::kRequired);

/// Reads a length: `<name>` in epochs (a decimal, kMinPeriod to kMaxEpoch) or its twin
/// `<name>_steps` (>= 1); an `_epochs` at the end of the name makes way for it. Exactly one of them
/// if required.
bool read_period(ConfigReader* in, std::string_view name, std::string_view help, Period* period,
                 bool is_required = true);

/// Reads update_frequency or its twin. -1 is refused with a way out: it would mean an update at
/// every step.
bool read_update_frequency(ConfigReader* in, Period* period);

/// Reads a key that recipes of other systems carry and that may only be -1 here. `why`: what holds
/// anyway, for the fault.
void read_minus_one(ConfigReader* in, std::string_view key, std::string_view why);
inline constexpr std::string_view kFunctionOfTheStep =
    "the rate is a function of the step, looked up at each";
/// The same for `end_epoch`, `end_step` and `end` of what has no end.
void read_no_end(ConfigReader* in, std::string_view why);
inline constexpr std::string_view kActsOnce = "it acts once, at its start";

/// Reads a required number in the range.
bool read_required(ConfigReader* in, std::string_view key, double* value, Range range,
                   std::string_view help);

/// A required value for parameters: one that float32 can hold.
bool read_param_value(ConfigReader* in, std::string_view key, double* value, std::string_view help);

/// Reads `param_groups`, a list of group numbers; which ones there are the timeline knows. Absent:
/// `groups` stays.
bool read_param_groups(ConfigReader* in, ParamGroups* groups);

/// Reads `constant_logging`, which recipes of other systems carry. Summaries here hold every rate
/// at every summary step anyway, so both values mean the same.
void read_constant_logging(ConfigReader* in);
/// The same and `log_types`, which has no effect where a modifier has no parameters.
void read_logging(ConfigReader* in);

/// Reads `params_strict`: whether an entry of `params` that selects nothing is a fault (default) or
/// a warning.
void read_params_strict(ConfigReader* in, bool* strict);

/// Reads `log_types`: __ALL__ or a list of any names asks for summaries of each parameter, wherever
/// there are summaries; none or an empty list forbids them. Absent: `logs` stays.
void read_log_types(ConfigReader* in, ParamLogs* logs);

}  // namespace lockstep::recal
