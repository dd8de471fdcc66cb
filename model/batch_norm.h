#pragma once

#include <string>
#include <utility>

#include "model/layers.h"

namespace lockstep::model {

/// Batch normalisation of images by channel: [B, C, H, W] -> [B, C, H, W], gamma × (x - mean) /
/// sqrt(variance + epsilon) + beta. model/batch_norm_table.h defines mean and variance.
///
/// Names: <name>.gamma, .beta (parameters without weight decay), <name>.moving_mean,
/// .moving_variance (buffers), and <name>.num_batches (number of their updates). Or PyTorch's names
/// (NormNames).
///
/// Source: Ioffe, Szegedy, arXiv 1502.03167, algorithm 1.
class BatchNorm {
 public:
  /// Adds itself to the table, after the table's last layer, which it normalises.
  BatchNorm(const std::string& name, int64_t num_channels, LayerTable* table,
            NormNames names = NormNames::kTensorFlow);
  at::Tensor operator()(const at::Tensor& inputs_BCHW) const;
  NetworkLayer description() const;

 private:
  bool goes_by_moving_statistics() const;
  at::Tensor by_moving_statistics(const at::Tensor& inputs_BCHW) const;
  at::Tensor by_own_samples(const at::Tensor& inputs_BCHW) const;
  at::Tensor by_samples_of_all_ranks(const at::Tensor& inputs_BCHW) const;
  void keep(SeenBatch batch) const { state_.seen.push_back(std::move(batch)); }

  const std::string name_;
  const NormNames names_;
  const BatchNormTable& norms_;
  BatchNormState& state_;
  at::Tensor gamma_C_, beta_C_;
};

}  // namespace lockstep::model
