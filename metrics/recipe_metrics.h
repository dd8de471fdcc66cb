#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace prometheus {
class Registry;
}

namespace lockstep::metrics {

/// Rates of one parameter group at a step.
struct GroupSample {
  double learning_rate = 0;
  double weight_decay = 0;
};

/// Counts of the model's parameters, in elements.
struct ParameterCounts {
  int64_t num_parameters = 0;
  int64_t num_prunable = 0;  ///< weights that a recipe could prune
  int64_t num_pruned = 0;    ///< kept at zero by a mask
  int64_t num_trainable = 0;
};

/// Series of a recipe. They belong to the run, not to a rank. A default-constructed object accepts
/// every call and exports nothing. One thread at a time.
class RecipeMetrics {
 public:
  RecipeMetrics();
  /// `modifiers`, `groups`: distinct names; later calls use their indexes. The page shows the first
  /// 16 modifiers and 8 groups. Throws Error(kBug) if two modifiers have one name.
  RecipeMetrics(prometheus::Registry& registry, const std::vector<std::string>& modifiers,
                const std::vector<std::string>& groups);
  ~RecipeMetrics();

  /// Sets the rates by group. About 50 ns.
  void set_rates(std::span<const GroupSample> rates);
  void set_parameter_counts(const ParameterCounts& counts);
  void set_target_sparsity(size_t modifier, double ratio);
  void record_modifier_update(size_t modifier);
  void add_mask_updates(int64_t count);
  /// Counts pruned weights that were found not to be zero.
  void add_revived_weights(int64_t count);
  /// Sets the pruned fraction of one parameter's weights.
  void set_layer_sparsity(const std::string& param, double ratio);
  void set_quantized_layers(int64_t count);
  void set_epochs_planned(double epochs);

  /// Last set values: of the first parameter group, and pruned / prunable weights.
  std::optional<double> learning_rate() const;
  double sparsity() const;

 private:
  struct Series;
  std::unique_ptr<Series> series_;  // null: nothing is exported
};

}  // namespace lockstep::metrics
