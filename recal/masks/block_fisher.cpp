#include "recal/masks/block_fisher.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"

// Accumulation of the Fisher blocks, their inverse, and what pruning needs of it.
namespace lockstep::recal {
namespace {

// c: blocks of a part, B: weights of a block, m: gradients.

/// Bytes of float64 that the inverse of one part of the blocks may take.
constexpr int64_t kPartBytes = int64_t{32} << 20;

/// Factor on the damping of a part that rounding has left without a Cholesky factor.
constexpr double kMoreDamping = 10;

/// Pads a vector with zeros and cuts it into rows of a block each.
at::Tensor in_blocks(const at::Tensor& values_D, int64_t num_blocks, int64_t block_size) {
  const int64_t missing = num_blocks * block_size - values_D.numel();
  return at::constant_pad_nd(values_D.flatten(), {0, missing}).view({num_blocks, block_size});
}

/// Returns the Cholesky factor of matrix + damping * I for each matrix [c, n, n], and the damping
/// that was needed.
at::Tensor damped_factor(const at::Tensor& matrix_cNN, double* damping) {
  const at::Tensor unit = at::eye(matrix_cNN.size(-1), matrix_cNN.options());
  while (true) {
    const auto [factor, info] = at::linalg_cholesky_ex(matrix_cNN + unit * *damping);
    if (info.max().item<int64_t>() == 0) return factor;
    if (!matrix_cNN.isfinite().all().item<bool>())
      throw Error(ExitCode::kNonFinite, "recal", "gradients for pruning are not finite");
    *damping *= kMoreDamping;
  }
}

}  // namespace

/// Inverse of some blocks: the matrices, or their factor in (I - Wᵀ W) / damp.
struct BlockFisher::Inverse {
  at::Tensor matrix_cBB;
  at::Tensor factor_cmB;
  double damp = 1;

  at::Tensor diagonal() const {
    if (matrix_cBB.defined()) return matrix_cBB.diagonal(0, 1, 2);
    return (1 - factor_cmB.square().sum(1)) / damp;
  }
  at::Tensor times(const at::Tensor& values_cB) const {
    const at::Tensor columns = values_cB.unsqueeze(2);
    if (matrix_cBB.defined()) return at::bmm(matrix_cBB, columns).squeeze(2);
    return (columns - at::bmm(factor_cmB.transpose(1, 2), at::bmm(factor_cmB, columns)))
        .squeeze(2)
        .div(damp);
  }
  /// Solves (F⁻¹ of each group) x = values.
  at::Tensor solved_by_group(const at::Tensor& values_cB, int64_t group) const {
    const int64_t num_blocks = values_cB.size(0), num_groups = values_cB.size(1) / group;
    const at::Tensor groups = matrix_cBB.view({num_blocks, num_groups, group, num_groups, group})
                                  .diagonal(0, 1, 3)
                                  .permute({0, 3, 1, 2});
    return at::linalg_solve(groups, values_cB.view({num_blocks, num_groups, group, 1}))
        .view(values_cB.sizes());
  }
};

BlockFisher::BlockFisher(int64_t num_weights, const FisherOptions& options)
    : num_weights_(num_weights), options_(options) {
  const int64_t size = options.block_size;
  // Pages that are never written take no memory: other ranks' statistics on this rank.
  statistics_ = stores_gradients() ? at::empty({options.num_grads, num_blocks() * size})
                                   : at::empty({num_blocks(), size, size});
}

int64_t BlockFisher::num_blocks() const { return options_.num_blocks(num_weights_); }

void BlockFisher::reset() { num_added_ = 0; }

void BlockFisher::add(const at::Tensor& gradient_D) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = in_blocks(gradient_D, num_blocks(), options_.block_size);
  if (stores_gradients()) {
    statistics_.select(0, num_added_).copy_(rows.flatten());
  } else {
    // beta 0 ignores the memory of an earlier update.
    statistics_.baddbmm_(rows.unsqueeze(2), rows.unsqueeze(1), /*beta=*/num_added_ > 0 ? 1 : 0);
  }
  ++num_added_;
}

BlockFisher::Inverse BlockFisher::inverse(int64_t first, int64_t count, bool needs_matrix) const {
  const int64_t size = options_.block_size;
  const auto num = static_cast<double>(num_added_);
  double damping = options_.damp;
  if (!stores_gradients()) {
    const at::Tensor mean = statistics_.narrow(0, first, count).to(at::kDouble) / num;
    return {.matrix_cBB = at::cholesky_inverse(damped_factor(mean, &damping))};
  }
  // Woodbury: F⁻¹ = (I - Gᵀ (m lambda I + G Gᵀ)⁻¹ G) / lambda = (I - Wᵀ W) / lambda.
  const at::Tensor gradients_cmB = statistics_.narrow(0, 0, num_added_)
                                       .narrow(1, first * size, count * size)
                                       .to(at::kDouble)
                                       .view({num_added_, count, size})
                                       .transpose(0, 1)
                                       .contiguous();
  damping *= num;
  const at::Tensor factor =
      damped_factor(at::bmm(gradients_cmB, gradients_cmB.transpose(1, 2)), &damping);
  Inverse inverse{.factor_cmB = at::linalg_solve_triangular(factor, gradients_cmB, /*upper=*/false),
                  .damp = damping / num};
  if (needs_matrix)
    inverse.matrix_cBB = (at::eye(size, factor.options()) -
                          at::bmm(inverse.factor_cmB.transpose(1, 2), inverse.factor_cmB)) /
                         inverse.damp;
  return inverse;
}

template <typename Use>
void BlockFisher::for_each_part(bool needs_matrix, const Use& use) const {
  const int64_t size = options_.block_size;
  const int64_t rows = needs_matrix ? size : std::min(size, options_.num_grads);
  const int64_t num_in_part =
      std::max<int64_t>(1, kPartBytes / (rows * size * static_cast<int64_t>(sizeof(double))));
  for (int64_t first = 0; first < num_blocks(); first += num_in_part) {
    const int64_t count = std::min(num_in_part, num_blocks() - first);
    use(inverse(first, count, needs_matrix), first, count);
  }
}

at::Tensor BlockFisher::scores(const at::Tensor& weight_D, int64_t group) const {
  const at::NoGradGuard no_grad;
  check(num_added_ > 0, "scores need gradients");
  const at::Tensor weights = in_blocks(weight_D, num_blocks(), options_.block_size).to(at::kDouble);
  const at::Tensor scores = at::empty(weights.sizes());
  for_each_part(group > 1, [&](const Inverse& inverse, int64_t first, int64_t count) {
    const at::Tensor part = weights.narrow(0, first, count);
    at::Tensor cost;
    if (group == 1) {
      cost = part.square() / (2 * inverse.diagonal());
    } else {
      const at::Tensor products = part * inverse.solved_by_group(part, group) / 2;
      const at::Tensor sums = products.view({count, -1, group}).sum(-1, /*keepdim=*/true);
      cost = sums.expand({count, -1, group}).reshape(part.sizes());
    }
    // Rounding may leave a tiny negative value.
    scores.narrow(0, first, count).copy_(cost.clamp_min(0));
  });
  return scores.flatten().narrow(0, 0, num_weights_);
}

at::Tensor BlockFisher::update(const at::Tensor& weight_D, const at::Tensor& pruned_D,
                               int64_t group) const {
  const at::NoGradGuard no_grad;
  check(num_added_ > 0, "an update needs gradients");
  const int64_t size = options_.block_size;
  const at::Tensor weights = in_blocks(weight_D, num_blocks(), size).to(at::kDouble);
  const at::Tensor pruned = in_blocks(pruned_D, num_blocks(), size);
  const at::Tensor change = at::empty(weights.sizes());
  for_each_part(group > 1, [&](const Inverse& inverse, int64_t first, int64_t count) {
    const at::Tensor part = weights.narrow(0, first, count);
    const at::Tensor each =
        group == 1 ? part / inverse.diagonal() : inverse.solved_by_group(part, group);
    const at::Tensor wanted = at::where(pruned.narrow(0, first, count), each, 0.0);
    change.narrow(0, first, count).copy_(inverse.times(wanted));
  });
  return change.flatten().narrow(0, 0, num_weights_);
}

}  // namespace lockstep::recal
