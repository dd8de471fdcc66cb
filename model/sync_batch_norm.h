#pragma once

#include <ATen/core/Tensor.h>

#include "model/batch_norm_table.h"

/// Batch normalisation by the samples of all ranks. Symbols: B = this rank's samples (0 allowed),
/// C = channels; n = values of a channel over all ranks.
namespace lockstep::model {

/// Equal on every rank.
struct GlobalStatistics {
  double num_samples = 0;
  at::Tensor mean_C, variance_C;  ///< float64; biased: divided by n
};

/// One sum over ranks, of [1 + 2C] numbers. Each rank's mean and variance are taken by themselves
/// and joined in float64, so that a mean far from 0 costs no digits.
GlobalStatistics global_statistics(const at::Tensor& inputs_BCHW, const SumOverRanks& sum);

/// gamma (x - mean) / sqrt(variance + epsilon) + beta, and one more sum over ranks, of [2C]
/// numbers, in its backward: mean and variance depend on every rank's inputs. The gradients of
/// gamma and beta are this rank's share, as those of all other parameters.
at::Tensor normalise_globally(const at::Tensor& inputs_BCHW, const at::Tensor& gamma_C,
                              const at::Tensor& beta_C, const GlobalStatistics& global,
                              double num_values, double epsilon, const SumOverRanks& sum);

}  // namespace lockstep::model
