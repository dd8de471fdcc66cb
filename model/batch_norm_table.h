#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// Adds each rank's float64 numbers, on any device, in place. Called inside forward and backward,
/// by every rank alike.
using SumOverRanks = std::function<void(const at::Tensor& values_K)>;

/// What one forward pass saw. Unbiased variance. Any float type, no gradients.
struct SeenBatch {
  double num_samples = 0;
  at::Tensor mean_C, variance_C;
};

/// What one batch normalisation keeps between steps, and what it saw since the last update of that.
/// Symbol: C = channels.
struct BatchNormState {
  at::Tensor moving_mean_C, moving_variance_C;  ///< float32; of evaluation
  at::Tensor num_batches;                       ///< int64 [], updates of the two above
  std::vector<SeenBatch> seen;                  ///< by forward pass
};

/// What all N batch normalisations of a model saw. Numbers of samples stay on the host, where they
/// are known: to read them back from a GPU would make the host wait for it.
struct SeenStatistics {
  std::vector<double> num_samples_N;
  /// float64 [K], on the model's device: of each in turn its means, then its variances [C], both
  /// summed over samples.
  at::Tensor sums_K;
};

/// What the batch normalisations of one model share.
///
/// In training they normalise by the batch's own mean and variance. Forward only keeps these; the
/// moving ones change in update() alone, once a step, so that a skipped step changes nothing and
/// several micro-batches count as one batch. Neighbours that saw equally many samples, as a rule
/// all, are summed and updated together: a few kernels a step instead of a few for each.
class BatchNormTable {
 public:
  static constexpr double kEpsilon = 1e-5;  ///< added to a variance
  static constexpr double kKept = 0.9;      ///< share of the moving statistics that update() keeps

  BatchNormState& add(int64_t num_channels);
  bool empty() const { return states_.empty(); }
  void move_to(at::Device device);

  /// False: evaluation, by the moving statistics.
  void set_training(bool training) { training_ = training; }
  bool is_training() const { return training_; }
  /// True: training goes by the moving statistics too, and they stay as they are.
  void set_frozen(bool frozen) { frozen_ = frozen; }
  bool is_frozen() const { return frozen_; }
  /// True: one whose parameters are not trained is frozen so, as long as they are not.
  void set_frozen_with_params(bool frozen) { frozen_with_params_ = frozen; }
  bool is_frozen_with_params() const { return frozen_with_params_; }
  /// Empty: each rank normalises by its own samples. Else by those of all ranks, and then every
  /// rank runs forward and backward equally often, also without samples.
  void set_sum_over_ranks(SumOverRanks sum) { sum_ = std::move(sum); }
  const SumOverRanks& sum_over_ranks() const { return sum_; }

  /// What was seen since the last call. Sums of it over ranks are the same of all.
  SeenStatistics take_seen();
  /// Moves the moving statistics towards the means of `seen`, (1 - kKept) of the way. Leaves those
  /// alone that saw no samples.
  void update(const SeenStatistics& seen);

 private:
  std::vector<std::unique_ptr<BatchNormState>> states_;  // layers keep addresses
  SumOverRanks sum_;
  bool training_ = true, frozen_ = false, frozen_with_params_ = false;
};

}  // namespace lockstep::model
