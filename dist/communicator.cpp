// Argument checks of all backends, the world of one rank, and checked calls.
#include "dist/communicator.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "dist/collectives.h"

namespace lockstep::dist {

// Argument checks that all backends share. They run before any message is sent.

namespace {

bool is_supported(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_values(const at::Tensor& values, at::Device device) {
  check(values.defined() && values.is_contiguous(), "a collective needs a contiguous tensor");
  check(values.device() == device,
        fmt::format("a collective of {} got a tensor on {}", device.str(), values.device().str()));
  check(is_supported(values.scalar_type()),
        fmt::format("no collective for dtype {}", c10::toString(values.scalar_type())));
}

void check_pieces(const at::Tensor& values_K, const at::Tensor& values_NK, int world_size,
                  at::Device device) {
  check_values(values_K, device);
  check_values(values_NK, device);
  check(values_K.scalar_type() == values_NK.scalar_type(), "pieces and whole differ in dtype");
  check(values_NK.numel() == values_K.numel() * world_size,
        fmt::format("{} items are not {} pieces of {}", values_NK.numel(), world_size,
                    values_K.numel()));
}

// SelfCommunicator: every collective is the identity, with the same argument checks as the other
// backends.

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

// CheckedCommunicator: compares a text of each call over a second communicator before the call
// itself, so that a mismatch is an error instead of a hang.

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
