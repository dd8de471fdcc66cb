// Chooses between the exchange by hosts (large tensors) and flat messages. The choice depends on
// sizes alone, so all ranks make the same one.
#include "dist/mpi/hierarchical_communicator.h"

#include "dist/backend_parts.h"

namespace lockstep::dist::mpi {
namespace {

constexpr int64_t kSmallBytes = 16 << 10;  // up to here one message to every rank beats six stages

}  // namespace

bool HierarchicalCommunicator::goes_by_hosts(const at::Tensor& piece_K) const {
  return payload_bytes(piece_K) * world_size() > kSmallBytes &&
         exchange_.can_scatter(static_cast<int64_t>(piece_K.itemsize()));
}

std::unique_ptr<Work> HierarchicalCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device());
  if (payload_bytes(values_K) <= kSmallBytes) return flat_->all_reduce(std::move(values_K), op);
  bytes_reduced_ += payload_bytes(values_K);
  exchange_.all_reduce(call_of(CallKind::kAllReduce, values_K, static_cast<int>(op)),
                       bytes_of(values_K), values_K.numel(), items_of(values_K, op));
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> HierarchicalCommunicator::reduce_scatter(at::Tensor out_K,
                                                               at::Tensor values_NK) {
  check_pieces(out_K, values_NK, world_size(), device());
  if (!goes_by_hosts(out_K)) return flat_->reduce_scatter(std::move(out_K), std::move(values_NK));
  bytes_reduced_ += payload_bytes(values_NK);
  exchange_.reduce_scatter(call_of(CallKind::kReduceScatter, out_K), bytes_of(values_NK),
                           bytes_of(out_K), out_K.numel(), items_of(out_K, ReduceOp::kSum));
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> HierarchicalCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, world_size(), device());
  if (!goes_by_hosts(values_K)) return flat_->all_gather(std::move(out_NK), std::move(values_K));
  exchange_.all_gather(call_of(CallKind::kAllGather, values_K), bytes_of(values_K),
                       bytes_of(out_NK), values_K.numel(), items_of(values_K, ReduceOp::kSum));
  return std::make_unique<DoneWork>();
}

}  // namespace lockstep::dist::mpi
