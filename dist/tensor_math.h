#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "dist/communicator.h"

/// Loops over tensor elements: sums over ranks, division, magnitudes, digests.
namespace lockstep::dist {

/// Reduces values of all ranks. The only place where CPU backends add, so that their bits agree.
///
/// The order of additions is a binary tree over the ranks, fixed by their number alone. The ranks
/// [b, e) are the ranks [b, b + h) plus the ranks [b + h, e). Here h is the largest power of two
/// below e - b. So 3 ranks are (x_0 + x_1) + x_2, and 4 are (x_0 + x_1) + (x_2 + x_3). Ranks of one
/// host can therefore be summed there without changing the result
/// (docs/decisions/0011-sums-as-a-tree.md).
///
/// 16-bit floats are summed in float32 and rounded once. Integer sums wrap. A NaN on any rank makes
/// minimum and maximum NaN. `out` may be one of the inputs, but must not overlap them in part.
/// `also_out`, if given, receives the results too.
void reduce_in_rank_order(std::span<const std::byte* const> values_by_rank, std::byte* out,
                          int64_t num_items, at::ScalarType dtype, ReduceOp op,
                          std::byte* also_out = nullptr);

/// Accumulator type for sums of `dtype`: float32 for 16-bit floats.
at::ScalarType accumulator_of(at::ScalarType dtype);

/// Inputs of one part of such a reduction, or of its end. Input i is the reduction over the ranks
/// [first_ranks[i], first_ranks[i + 1]), which must be nodes of the tree. first_ranks has one entry
/// more than there are inputs. It begins with a node's first rank, 0 for the whole.
struct PartialInputs {
  std::span<const std::byte* const> values;
  std::span<const int> first_ranks;
};

/// Reduces parts. Items come as in_dtype and leave as out_dtype: equal, or one the accumulator of
/// the other.
void reduce_parts(const PartialInputs& inputs, std::byte* out, int64_t num_items,
                  at::ScalarType in_dtype, at::ScalarType out_dtype, ReduceOp op,
                  std::byte* also_out = nullptr);

/// Returns the number of ranks in the left subtree of [0, count); count >= 2.
int left_ranks(int count);

/// Divides each item of sums_E by num_samples, in place, and returns true if all results are
/// finite. One pass on the CPU, read-only if num_samples is 1. On a device it only divides and
/// returns true; largest_of_all() then checks many tensors at once. 16-bit floats are divided in
/// float32. float32, float64, bfloat16, float16; num_samples > 0. The same bits give the same
/// result on every rank.
bool divide_and_check(const at::Tensor& sums_E, int64_t num_samples);
/// Divides and checks items in raw memory.
bool divide_and_check(void* sums_E, int64_t num_items, at::ScalarType dtype, int64_t num_samples);

/// Returns the largest magnitude of all items of all tensors, float [1] (float64 if some are) on
/// `device`. The host does not wait. The result is finite exactly if all items are. The tensors are
/// floats on that device; any of them may be empty or undefined.
at::Tensor largest_of_all(at::Device device, const std::vector<at::Tensor>& tensors);

/// Returns the largest magnitude of contiguous float32 items on the CPU: infinite if one is not
/// finite, 0 for none. One pass that allocates no tensor.
double largest_magnitude(const at::Tensor& values_E);

/// Returns a 64-bit digest of a tensor: dtype, shape and every byte in row-major order. Any single
/// changed 8-byte word changes it. Unrelated contents collide with probability about 2^-64.
/// Designed for speed (several GB/s), not against an adversary. Tensors on a device are copied to
/// the CPU.
int64_t tensor_digest(const at::Tensor& tensor);

}  // namespace lockstep::dist
