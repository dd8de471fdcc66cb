#include "dist/mean_over_ranks.h"

#include <ATen/core/grad_mode.h>

#include "dist/joined_tensors.h"

namespace lockstep::dist {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Returns the end of the message that begins at `begin`.
size_t end_of_message(const Tensors& flat, size_t begin, int64_t message_bytes) {
  auto num_bytes = static_cast<int64_t>(flat[begin].nbytes());
  size_t end = begin + 1;
  for (; end < flat.size() && flat[end].scalar_type() == flat[begin].scalar_type(); ++end) {
    num_bytes += static_cast<int64_t>(flat[end].nbytes());
    if (num_bytes > message_bytes) break;
  }
  return end;
}

void take_mean(Communicator& comm, const at::Tensor& values_K) {
  comm.all_reduce(values_K, ReduceOp::kSum)->wait();
  values_K.div_(comm.world_size());
}

}  // namespace

void mean_over_ranks(Communicator& comm, const Tensors& tensors, int64_t message_bytes) {
  const at::NoGradGuard no_grad;
  Tensors flat;
  for (const at::Tensor& tensor : tensors)
    if (tensor.numel() > 0) flat.push_back(tensor.view({-1}));
  for (size_t begin = 0, end = 0; begin < flat.size(); begin = end) {
    end = end_of_message(flat, begin, message_bytes);
    // A large tensor is reduced in place, without copies.
    if (end == begin + 1) {
      take_mean(comm, flat[begin]);
      continue;
    }
    const at::TensorList together(&flat[begin], end - begin);
    const at::Tensor joined_K = joined(together, flat[begin].options());
    take_mean(comm, joined_K);
    take_apart(joined_K, together);
  }
}

}  // namespace lockstep::dist
