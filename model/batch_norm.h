#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

/// Batch normalisation: statistics of a model's layers, and normalisation over all ranks' samples.
namespace lockstep::model {

/// Sums each rank's float64 values over the ranks, on any device, in place. Collective: every rank
/// calls it in forward and backward, in the same order.
using SumOverRanks = std::function<void(const at::Tensor& values_K)>;

/// Batch statistics of one forward pass. Unbiased variance. Any float type, no gradients.
struct SeenBatch {
  double num_samples = 0;
  at::Tensor mean_C, variance_C;
};

/// State of one batch normalisation, and batch statistics since its last update. C = channels.
struct BatchNormState {
  at::Tensor moving_mean_C, moving_variance_C;  ///< float32; used in evaluation
  at::Tensor num_batches;                       ///< int64 [], number of updates
  std::vector<SeenBatch> seen;                  ///< one entry per forward pass
};

/// Statistics of all N batch normalisations of a model. Numbers of samples stay on the host, where
/// they are known: reading them back from a GPU would make the host wait.
struct SeenStatistics {
  std::vector<double> num_samples_N;
  /// float64 [K], on the model's device: for each in turn the means, then the variances [C], both
  /// summed over samples.
  at::Tensor sums_K;
};

/// State and settings shared by the batch normalisations of one model.
///
/// Training normalises by mean and variance of the batch. Forward only records these. The moving
/// statistics change in update() alone, once per step. So a skipped step changes nothing, and
/// several micro-batches count as one batch. Neighbours with equal numbers of samples (normally
/// all) are summed and updated together. That takes few kernels per step.
class BatchNormTable {
 public:
  static constexpr double kEpsilon = 1e-5;  ///< added to a variance
  static constexpr double kKept = 0.9;      ///< share of the old statistics in update()

  BatchNormState& add(int64_t num_channels);
  bool empty() const { return states_.empty(); }
  void move_to(at::Device device);

  /// Selects training, or evaluation with the moving statistics.
  void set_training(bool training) { training_ = training; }
  bool is_training() const { return training_; }
  /// Freezes the statistics if true: training also uses the moving ones, which do not change.
  void set_frozen(bool frozen) { frozen_ = frozen; }
  bool is_frozen() const { return frozen_; }
  /// Freezes each normalisation while its parameters are not trained, if true.
  void set_frozen_with_params(bool frozen) { frozen_with_params_ = frozen; }
  bool is_frozen_with_params() const { return frozen_with_params_; }
  /// Sets the sum over ranks. Empty: each rank normalises by its own samples. Else by those of all
  /// ranks. Then every rank must run forward and backward equally often, even without samples.
  void set_sum_over_ranks(SumOverRanks sum) { sum_ = std::move(sum); }
  const SumOverRanks& sum_over_ranks() const { return sum_; }

  /// Returns the statistics since the last call. They may be summed over the ranks.
  SeenStatistics take_seen();
  /// Moves the statistics by 1 - kKept towards the means of `seen`. Skips those without samples.
  void update(const SeenStatistics& seen);

 private:
  std::vector<std::unique_ptr<BatchNormState>> states_;  // layers keep addresses
  SumOverRanks sum_;
  bool training_ = true, frozen_ = false, frozen_with_params_ = false;
};

// Normalisation over the samples of all ranks. Symbols: B = this rank's samples (0 allowed), C =
// channels, n = values per channel over all ranks.

/// Mean and variance over all ranks, equal on every rank.
struct GlobalStatistics {
  double num_samples = 0;
  at::Tensor mean_C, variance_C;  ///< float64; biased (divided by n)
};

/// Computes the statistics with one sum over ranks, of [1 + 2C] values. Each rank computes its own
/// mean and variance, and float64 joins them. So a mean far from 0 costs no precision.
GlobalStatistics global_statistics(const at::Tensor& inputs_BCHW, const SumOverRanks& sum);

/// Computes gamma (x - mean) / sqrt(variance + epsilon) + beta. Its backward makes one more sum
/// over ranks, of [2C] values, because mean and variance depend on every rank's inputs. The
/// gradients of gamma and beta are this rank's share, as for all other parameters.
at::Tensor normalise_globally(const at::Tensor& inputs_BCHW, const at::Tensor& gamma_C,
                              const at::Tensor& beta_C, const GlobalStatistics& global,
                              double num_values, double epsilon, const SumOverRanks& sum);

}  // namespace lockstep::model
