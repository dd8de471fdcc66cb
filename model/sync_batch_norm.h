#pragma once

#include <ATen/core/Tensor.h>

#include "model/batch_norm_table.h"

/// Batch normalisation over the samples of all ranks. Symbols: B = this rank's samples (0 allowed),
/// C = channels, n = values per channel over all ranks.
namespace lockstep::model {

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
