#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

/// Checks that all ranks have equal tensors or equal state.
namespace lockstep::dist {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  ///< any dtype, device and strides
};

/// Throws Error(kDisagree).everywhere() unless each tensor contains the same bytes on all ranks (so
/// 0 and -0 differ, and a NaN equals itself). Collective. The list has the same length on all
/// ranks. Names, order, dtypes and shapes are compared too. The message names the first tensor that
/// differs and the ranks. It gives the first differing item (index in row-major order and per
/// dimension), and every rank's value there:
///
///   mask of blocks.0.conv.weight differs: rank 1 from ranks 0, 2, 3; first at item 17 [1, 1, 2]:
///   ranks 0, 2, 3: 1; rank 1: 0 (1 of 5 tensors differs)
///
/// Cost while all agree: one digest per tensor (at memory speed), and one all_reduce of 16 bytes
/// per tensor.
void require_equal_replicas(Communicator& comm, std::string_view what,
                            const std::vector<NamedTensor>& tensors);

/// Formats the first item in which two tensors on the CPU differ, of one shape and dtype: "item 17
/// [1, 1, 2]: 0.5 instead of 0.25".
std::string difference_text(const at::Tensor& is, const at::Tensor& should_be);

/// Throws Error(kDisagree).everywhere() unless all ranks have the same texts and, bit for bit, the
/// same tensors, like require_equal_replicas(). `what`: "the state at step 500". Sharded tensors
/// (StateEntry::held) are skipped, since each of their elements exists only once. Collective.
void require_equal_state(Communicator& comm, std::string_view what, const StateList& state);

}  // namespace lockstep::dist
