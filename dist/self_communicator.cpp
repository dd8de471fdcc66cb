// The identity for every collective, with the same argument checks as the other backends.
#include "dist/self_communicator.h"

#include "base/error.h"
#include "dist/backend_parts.h"

namespace lockstep::dist {

std::unique_ptr<Work> SelfCommunicator::all_reduce(at::Tensor values_K, ReduceOp) {
  check_values(values_K, device_);
  bytes_reduced_ += payload_bytes(values_K);
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> SelfCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, 1, device_);
  bytes_reduced_ += payload_bytes(values_NK);
  out_K.view(-1).copy_(values_NK.view(-1));
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> SelfCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, 1, device_);
  out_NK.view(-1).copy_(values_K.view(-1));
  return std::make_unique<DoneWork>();
}

void SelfCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device_);
  check(root == 0, "broadcast from a rank that does not exist");
}

std::unique_ptr<Communicator> SelfCommunicator::split(int color, int) {
  check(color >= 0, "split needs a color >= 0");
  return std::make_unique<SelfCommunicator>(device_);
}

}  // namespace lockstep::dist
