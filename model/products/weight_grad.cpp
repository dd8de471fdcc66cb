#include "model/products/weight_grad.h"

#include <algorithm>

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "model/products/few_samples.h"

namespace lockstep::model {
namespace {

/// Approximate elements of a block: 4 MiB, large enough for full speed of the product, and 34 ms of
/// a 1 Gbit/s link.
constexpr int64_t kElementsOfABlock = 1 << 20;
/// Elements of the first block, smaller like the step's first bucket: until then the link is idle.
constexpr int64_t kElementsOfFirst = 1 << 18;
/// Rows that a kernel takes at once; it handles a remainder row by row.
constexpr int64_t kRowsAtOnce = 24;

int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

/// Returns the block that begins at a row. On a GPU all rows, since one product is faster there.
Rows block_at(int64_t begin, const at::Tensor& grad_OI) {
  const int64_t num_rows = grad_OI.size(0), num_left = (num_rows - begin) * grad_OI.size(1);
  if (!grad_OI.is_cpu() || num_left <= kElementsOfABlock) return {begin, num_rows};
  const int64_t least = begin == 0
                            ? divided_up(kElementsOfFirst, grad_OI.size(1))
                            // The rest is divided into blocks of nearly equal size.
                            : divided_up(num_rows - begin, divided_up(num_left, kElementsOfABlock));
  const int64_t size = divided_up(least, kRowsAtOnce) * kRowsAtOnce;
  return {begin, std::min(begin + size, num_rows)};
}

void write_rows(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                const Rows& rows, const at::Tensor& grad_OI) {
  at::Tensor grad_RI = grad_OI.narrow(0, rows.begin, rows.end - rows.begin);
  const at::Tensor grads_RB = grads_BO.narrow(1, rows.begin, rows.end - rows.begin).t();
  if (adds)
    at::addmm_out(grad_RI, grad_RI, grads_RB, inputs_BI);
  else
    at::mm_out(grad_RI, grads_RB, inputs_BI);
}

}  // namespace

void write_weight_grad(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                       const std::function<void(int64_t num_elements)>& on_written,
                       at::Tensor grad_OI) {
  // Narrow factors: the product must be rounded to their type before it is added.
  if (grads_BO.scalar_type() != grad_OI.scalar_type()) {
    const at::Tensor product_OI = at::mm(grads_BO.t(), inputs_BI);
    adds ? grad_OI.add_(product_OI) : grad_OI.copy_(product_OI);
    return;
  }
  const bool are_few = has_few_samples(grads_BO, grad_OI) && has_few_samples(inputs_BI, grad_OI);
  const int64_t num_rows = grad_OI.size(0);
  for (Rows rows = block_at(0, grad_OI); rows.begin < num_rows;
       rows = block_at(rows.end, grad_OI)) {
    if (are_few)
      write_few_grads(grads_BO, inputs_BI, adds, rows, grad_OI);
    else
      write_rows(grads_BO, inputs_BI, adds, rows, grad_OI);
    if (on_written) on_written(rows.end * grad_OI.size(1));
  }
}

}  // namespace lockstep::model
