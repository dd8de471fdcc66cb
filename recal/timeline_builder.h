#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "recal/timeline.h"

namespace lockstep::recal {

/// Update k of a period falls on `step`. Where several updates fall on one step, k is the last of
/// them.
struct PeriodicUpdate {
  int64_t k = 0;
  int64_t step = 0;
};

/// What a modifier sees while a timeline is compiled: conversions, claims (who may write what) and
/// the list of actions. Modifiers contribute in recipe order.
class TimelineBuilder {
 public:
  TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs, Faults* faults);
  Timeline build();

  double base_learning_rate() const { return inputs_.base_learning_rate; }
  /// ceil(epoch x steps per epoch), exactly.
  int64_t step_of(const Decimal& epoch) const { return epoch.ceil_times(inputs_.steps_per_epoch); }
  /// Updates at ceil((start + k x period) x steps per epoch), k = 0, 1, ..., before step_of(end).
  /// More than 1,000,000 are a fault.
  std::vector<PeriodicUpdate> updates(const Decimal& start, const Decimal& period,
                                      const Decimal& end);

  /// The current modifier writes the learning rate in [first_step, last_step); a fault if another
  /// does at one of them.
  void claim_learning_rate(int64_t first_step, int64_t last_step);
  /// The current modifier prunes these parameters until end_step; a fault if another prunes one of
  /// them. Returns the parameter set.
  int claim_gradual_pruning(const ParamSelector& selector, int64_t end_step);
  /// The current modifier keeps these parameters' zeros: from step 0, or where a gradual modifier
  /// listed earlier ends. Returns (step, parameter set); a fault if another constant modifier has
  /// one of them.
  std::vector<std::pair<int64_t, int>> claim_constant_pruning(const ParamSelector& selector);

  void add(int64_t step, ActionKind kind, double value, int param_set = -1);
  /// A warning with the current modifier's place.
  void warn(const std::string& message);

 private:
  struct PruningClaim {
    int modifier = 0;
    bool gradual = false;
    int64_t end_step = 0;
  };
  struct RateClaim {
    int modifier = 0;
    int64_t first_step = 0, last_step = 0;
  };

  const Modifier& modifier(int index) const {
    return *recipe_.modifiers()[static_cast<size_t>(index)];
  }
  std::vector<int64_t> resolve(const ParamSelector& selector);
  int add_param_set(const std::vector<int64_t>& params, const ParamSelector& selector);
  void refuse_second_pruner(int64_t param, const PruningClaim& first);
  void contribute_all();
  void set_bounds();
  void note_widening();
  void warn_of_idle_modifiers();
  void sort_actions();

  const Recipe& recipe_;
  const TimelineInputs& inputs_;
  Faults* faults_;
  int current_ = 0;
  Timeline timeline_;
  std::map<int64_t, PruningClaim> pruning_claims_;  // by parameter
  std::vector<RateClaim> rate_claims_;
};

}  // namespace lockstep::recal
