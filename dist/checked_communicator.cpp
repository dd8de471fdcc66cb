// Compares a text of each call over a second communicator before the call itself, so that a
// mismatch is an error instead of a hang.
#include "dist/checked_communicator.h"

#include <utility>

#include <fmt/format.h>

#include "dist/agree.h"

namespace lockstep::dist {
namespace {

std::string text_of(std::string_view name, const at::Tensor& values) {
  return fmt::format("{} of {} {}", name, values.numel(), c10::toString(values.scalar_type()));
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return "all_reduce (min)";
    case ReduceOp::kMax:
      return "all_reduce (max)";
    case ReduceOp::kSum:
      break;
  }
  return "all_reduce (sum)";
}

}  // namespace

CheckedCommunicator::CheckedCommunicator(std::unique_ptr<Communicator> comm,
                                         std::unique_ptr<Communicator> comparison)
    : comm_(std::move(comm)), comparison_(std::move(comparison)) {}

void CheckedCommunicator::require_equal_calls(const std::string& call) {
  // The number distinguishes equal calls at different positions of the sequence.
  require_equal(*comparison_, fmt::format("collective {} of the gradients", ++num_calls_), call);
}

std::unique_ptr<Work> CheckedCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  require_equal_calls(text_of(name_of(op), values_K));
  return comm_->all_reduce(std::move(values_K), op);
}

std::unique_ptr<Work> CheckedCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  require_equal_calls(text_of("reduce_scatter", values_NK));
  return comm_->reduce_scatter(std::move(out_K), std::move(values_NK));
}

std::unique_ptr<Work> CheckedCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  require_equal_calls(text_of("all_gather", out_NK));
  return comm_->all_gather(std::move(out_NK), std::move(values_K));
}

void CheckedCommunicator::broadcast(at::Tensor values_K, int root) {
  require_equal_calls(text_of(fmt::format("broadcast from rank {}", root), values_K));
  comm_->broadcast(std::move(values_K), root);
}

void CheckedCommunicator::barrier() {
  require_equal_calls("barrier");
  comm_->barrier();
}

SharedMemory CheckedCommunicator::share_memory(int64_t num_bytes) {
  require_equal_calls(fmt::format("share_memory of {} bytes", num_bytes));
  return comm_->share_memory(num_bytes);
}

// Both communicators split in the same way, so that a part compares only its own ranks.
std::unique_ptr<Communicator> CheckedCommunicator::split(int color, int key) {
  require_equal_calls("split");
  auto part = comm_->split(color, key);
  return std::make_unique<CheckedCommunicator>(std::move(part), comparison_->split(color, key));
}

}  // namespace lockstep::dist
