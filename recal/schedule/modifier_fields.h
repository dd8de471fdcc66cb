#pragma once

#include <optional>
#include <string_view>

#include "base/yaml/config_reader.h"
#include "recal/masks/mask_kind.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/recipe.h"
#include "recal/schedule/train_time.h"

/// Readers of keys that several modifiers share. A wrong value becomes a fault. Each function
/// returns true if its value is usable.
namespace lockstep::recal {

/// Largest epoch and step, and shortest period, that a recipe may contain. They keep every step
/// number far inside 64 bits.
inline constexpr double kMaxEpoch = 1e6;
inline constexpr double kMaxStep = 1e15;
inline constexpr double kMinPeriod = 1e-6;

/// Meaning of -1 at a key.
enum class MinusOne { kRefused, kRunStart, kRunEnd };

/// Key of a moment: `<name>_epoch` (a decimal, 0 to kMaxEpoch) or `<name>_step` (an integer, 0 to
/// kMaxStep). At most one of the two may be given, exactly one if required. Newer SparseML recipes
/// write `start` and `end`, which are read as start_epoch and end_epoch.
struct MomentKey {
  std::string_view name;  ///< start, end, freeze_bn_stats, ...
  std::string_view help;
  bool is_required = true;
  MinusOne minus_one = MinusOne::kRefused;
  bool is_minus_one_by_default = false;  ///< optional; -1 if missing
};
bool read_moment(ConfigReader* in, const MomentKey& key, std::optional<TrainTime>* value);

/// True if the recipe has neither the epoch nor the step of this name.
bool lacks_moment(const ConfigReader& in, std::string_view name);

/// Requirement on the keys start and end of a window. -1 means start or end of the run; start <
/// end. A missing optional bound leaves the window open on that side.
enum class Bounds {
  kRequired,
  kOptional,
  kEndByDefault,  ///< start is required, a missing end is -1
};
bool read_window(ConfigReader* in, Window* window, Bounds bounds = Bounds::kRequired);

/// Reads the start of a modifier without an end: -1, the default, is the run's start. Returns true
/// if the recipe gives no start.
bool read_start(ConfigReader* in, std::string_view help, Window* window);

/// Reads a duration: `<name>` in epochs (a decimal, kMinPeriod to kMaxEpoch) or `<name>_steps`
/// (>= 1). A suffix `_epochs` of the name is replaced by `_steps`. Exactly one of them if required.
bool read_period(ConfigReader* in, std::string_view name, std::string_view help, Period* period,
                 bool is_required = true);

/// Reads update_frequency or update_frequency_steps. Refuses -1, which would mean an update at
/// every step; the message names the alternative.
bool read_update_frequency(ConfigReader* in, Period* period);

/// Reads a SparseML key that may only be -1 here. why: the reason, for the fault.
void read_minus_one(ConfigReader* in, std::string_view key, std::string_view why);
inline constexpr std::string_view kFunctionOfTheStep =
    "the rate is a function of the step, looked up at each";
/// Reads `end_epoch`, `end_step` and `end` of a modifier without an end: only -1 is allowed.
void read_no_end(ConfigReader* in, std::string_view why);
inline constexpr std::string_view kActsOnce = "it acts once, at its start";

/// Reads a required number in the range.
bool read_required(ConfigReader* in, std::string_view key, double* value, Range range,
                   std::string_view help);

/// Reads a required value for parameters, within the range of float32.
bool read_param_value(ConfigReader* in, std::string_view key, double* value, std::string_view help);

/// Reads `param_groups`, a list of group numbers; the timeline checks that they exist. `groups` is
/// unchanged if the key is absent.
bool read_param_groups(ConfigReader* in, ParamGroups* groups);

/// Reads SparseML's `constant_logging`, which has no effect here: summaries always contain every
/// rate at every summary step.
void read_constant_logging(ConfigReader* in);
/// True if a key is present, even with the value null. For keys of SparseML that do nothing here:
/// they are only taken if present, which keeps them out of lists of known keys.
bool is_written(const ConfigReader& in, std::string_view key);

/// Reads `constant_logging` and `log_types` of a modifier without parameters; neither has an
/// effect.
void read_logging(ConfigReader* in);

/// Reads `mask_type`. `kind` is unchanged if the key is absent.
void read_mask_kind(ConfigReader* in, MaskKind* kind);

/// Reads `params_strict`: true (default) if an entry of `params` that selects nothing is a fault,
/// false if it is a warning.
void read_params_strict(ConfigReader* in, bool* strict);

/// Reads `log_types`. __ALL__ or a list of names asks for summaries of each parameter in all
/// outputs. none or an empty list turns them off. `logs` is unchanged if the key is absent.
void read_log_types(ConfigReader* in, ParamLogs* logs);

}  // namespace lockstep::recal
