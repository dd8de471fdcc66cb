// Collectives between GPUs, and the collective start of NCCL.
#include "dist/nccl/nccl_communicator.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/nccl/gpu_backend.h"

namespace lockstep::dist::nccl {

// NcclCommunicator, order of a collective: record the caller's stream, make the own stream wait for
// it, enqueue NCCL's calls, record the end. So the host never waits, and tensors stay allocated
// until the end.

namespace {

bool is_16_bit_float(const at::Tensor& values) {
  return values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kHalf;
}

std::string text_of(std::string_view name, const at::Tensor& values) {
  return fmt::format("{} of {} {}", name, values.numel(), c10::toString(values.scalar_type()));
}

/// An event, and what a wait for it needs.
struct Point {
  std::shared_ptr<GpuCalls> gpu;
  std::shared_ptr<WatchedComm> comm;
  std::shared_ptr<Event> event;
};

class NcclMark final : public StreamMark {
 public:
  explicit NcclMark(Point point) : point_(std::move(point)) {}

  const std::shared_ptr<Event>& event() const { return point_.event; }
  void wait_on_host() override {
    const auto on_device = point_.gpu->use_device();
    point_.comm->wait_for_own_work(*point_.event);
  }

 private:
  const Point point_;
};

class NcclWork final : public Work {
 public:
  explicit NcclWork(Point done) : done_(std::move(done)) {}

  void wait() override {
    done_.comm->require_healthy();
    const auto on_device = done_.gpu->use_device();
    // The device orders the streams; the host continues at once.
    done_.event->hold(done_.gpu->callers_stream());
  }

  void wait_on_host() override {
    wait();
    const auto on_device = done_.gpu->use_device();
    // wait() has ordered the stream; this blocks the host.
    done_.comm->wait_until_done(*done_.event);
  }

 private:
  const Point done_;
};

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<GpuCalls> gpu, std::shared_ptr<WatchedComm> comm)
    : gpu_(std::move(gpu)),
      comm_(std::move(comm)),
      device_(gpu_->device()),
      barrier_1_(at::zeros({1}, at::TensorOptions(at::kByte).device(device_))) {
  comm_->call("ncclCommUserRank, ncclCommCount", [&](CommHandle handle) {
    rank_ = gpu_->rank(handle);
    num_ranks_ = gpu_->num_ranks(handle);
    return Result{};
  });
}

std::unique_ptr<Work> NcclCommunicator::enqueue_after_caller(
    std::string what, std::initializer_list<at::Tensor> touched,
    const std::function<void()>& enqueue) {
  comm_->require_healthy();
  const auto on_device = gpu_->use_device();
  // A mark applies to one collective only.
  const auto mark = std::exchange(behind_, nullptr);
  const auto begun = mark != nullptr ? static_cast<const NcclMark&>(*mark).event()
                                     : std::make_shared<Event>(gpu_, gpu_->callers_stream());
  begun->hold(gpu_->own_stream());
  enqueue();
  // The caller may release the tensors before the stream has used them.
  for (const at::Tensor& tensor : touched) gpu_->keep_until_done(tensor);
  last_ = std::make_shared<Event>(gpu_, gpu_->own_stream());
  comm_->watch(begun, last_, std::move(what));
  return std::make_unique<NcclWork>(Point{gpu_, comm_, last_});
}

std::shared_ptr<StreamMark> NcclCommunicator::mark() {
  const auto on_device = gpu_->use_device();
  return std::make_shared<NcclMark>(
      Point{gpu_, comm_, std::make_shared<Event>(gpu_, gpu_->callers_stream())});
}

// NCCL adds 16-bit floats in 16 bits; here each rank adds its piece in float32.
void NcclCommunicator::exchange_and_add(const at::Tensor& out_K, const at::Tensor& values_NK,
                                        const at::Tensor& from_ranks_NK) {
  comm_->call("ncclSend, ncclRecv", [&](CommHandle handle) {
    return gpu_->all_to_all(handle, from_ranks_NK, values_NK);
  });
  // One sum over the rank dimension in float32, rounded once.
  gpu_->enqueue_kernels([out_K, from_ranks_NK, num_ranks = num_ranks_] {
    out_K.copy_(
        from_ranks_NK.view({num_ranks, -1}).sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat));
  });
}

void NcclCommunicator::sum_16_bit(const at::Tensor& values_K) {
  const int64_t num_items = values_K.numel();
  // Pieces of equal size, padded with zeros.
  const int64_t piece_K = (num_items + num_ranks_ - 1) / num_ranks_;
  const at::Tensor padded_NK = at::empty({piece_K * num_ranks_}, values_K.options());
  const at::Tensor from_ranks_NK = at::empty_like(padded_NK);
  const at::Tensor own_K = padded_NK.narrow(0, rank_ * piece_K, piece_K);
  gpu_->enqueue_kernels([=] {
    padded_NK.narrow(0, 0, num_items).copy_(values_K);
    padded_NK.narrow(0, num_items, padded_NK.numel() - num_items).zero_();
  });
  exchange_and_add(own_K, padded_NK, from_ranks_NK);
  comm_->call("ncclAllGather",
              [&](CommHandle handle) { return gpu_->all_gather(handle, padded_NK, own_K); });
  gpu_->enqueue_kernels([=] { values_K.copy_(padded_NK.narrow(0, 0, num_items)); });
  // Scratch tensors end with this function, before the stream has used them.
  gpu_->keep_until_done(padded_NK);
  gpu_->keep_until_done(from_ranks_NK);
}

std::unique_ptr<Work> NcclCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device_);
  comm_->require_healthy();
  bytes_reduced_ += payload_bytes(values_K);
  if (values_K.numel() == 0 || num_ranks_ == 1)
    // No collective runs, so no later one may use this mark.
    return behind_.reset(), std::make_unique<DoneWork>();
  return enqueue_after_caller(text_of("all_reduce", values_K), {values_K}, [&] {
    if (op == ReduceOp::kSum && is_16_bit_float(values_K)) return sum_16_bit(values_K.view({-1}));
    comm_->call("ncclAllReduce",
                [&](CommHandle handle) { return gpu_->all_reduce(handle, values_K, op); });
  });
}

std::unique_ptr<Work> NcclCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, num_ranks_, device_);
  comm_->require_healthy();
  bytes_reduced_ += payload_bytes(values_NK);
  if (out_K.numel() == 0) return behind_.reset(), std::make_unique<DoneWork>();
  return enqueue_after_caller(text_of("reduce_scatter", values_NK), {out_K, values_NK}, [&] {
    if (is_16_bit_float(out_K)) {
      const at::Tensor from_ranks_NK = at::empty_like(values_NK);
      exchange_and_add(out_K.view({-1}), values_NK.view({-1}), from_ranks_NK.view({-1}));
      return gpu_->keep_until_done(from_ranks_NK);
    }
    comm_->call("ncclReduceScatter",
                [&](CommHandle handle) { return gpu_->reduce_scatter(handle, out_K, values_NK); });
  });
}

std::unique_ptr<Work> NcclCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, num_ranks_, device_);
  comm_->require_healthy();
  if (values_K.numel() == 0) return behind_.reset(), std::make_unique<DoneWork>();
  return enqueue_after_caller(text_of("all_gather", out_NK), {out_NK, values_K}, [&] {
    comm_->call("ncclAllGather",
                [&](CommHandle handle) { return gpu_->all_gather(handle, out_NK, values_K); });
  });
}

void NcclCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device_);
  check(root >= 0 && root < num_ranks_, "broadcast from a rank that does not exist");
  comm_->require_healthy();
  if (values_K.numel() == 0 || num_ranks_ == 1) return;
  enqueue_after_caller(text_of("broadcast", values_K), {values_K}, [&] {
    comm_->call("ncclBroadcast",
                [&](CommHandle handle) { return gpu_->broadcast(handle, values_K, root); });
  })->wait();
}

void NcclCommunicator::barrier() {
  enqueue_after_caller("barrier", {barrier_1_}, [&] {
    comm_->call("ncclAllReduce", [&](CommHandle handle) {
      return gpu_->all_reduce(handle, barrier_1_, ReduceOp::kMax);
    });
  })->wait_on_host();
}

void NcclCommunicator::settle() {
  comm_->require_healthy();
  if (last_ == nullptr) return;
  const auto on_device = gpu_->use_device();
  comm_->wait_until_done(*last_);
}

std::shared_ptr<DeviceStager> NcclCommunicator::make_stager() {
  const auto on_device = gpu_->use_device();
  return std::make_shared<PinnedStager>(gpu_->beside(), comm_);
}

std::shared_ptr<DevicePacking> NcclCommunicator::make_packing() {
  return std::make_shared<GpuPacking>(gpu_);
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  check(color >= 0, "split needs a color >= 0");
  const auto on_device = gpu_->use_device();
  // The part has a separate watchdog, and shares the stream, so that collectives stay in one order.
  auto part = std::make_shared<WatchedComm>(gpu_, comm_->limits());
  part->adopt(comm_->split(color, key));
  return std::make_unique<NcclCommunicator>(gpu_, std::move(part));
}

// start_communicator(): collective start of NCCL. Local work runs in agreed(), which turns one
// rank's fault into an error of all ranks.

/// Runs one rank's part of a collective start; its fault becomes every rank's.
static void agreed(Communicator& control, const std::function<void()>& part) {
  std::optional<Error> fault;
  try {
    part();
  } catch (const Error& error) {
    fault = error;
  } catch (const std::exception& error) {
    fault = Error(ExitCode::kUnavailable, "dist.nccl", error.what());
  }
  throw_if_any(control, fault);
}

std::unique_ptr<Communicator> start_communicator(Communicator& control,
                                                 std::shared_ptr<GpuCalls> gpu,
                                                 const WatchLimits& limits) {
  // Every stage ends with an agreement, so that no rank waits inside NCCL for one that has failed.
  agreed(control, [&] { gpu->require_usable(); });
  std::string id;
  agreed(control, [&] {
    const auto on_device = gpu->use_device();
    if (control.rank() == 0) id = gpu->make_unique_id();
  });
  id = broadcast_text(control, id);
  std::unique_ptr<Communicator> made;
  agreed(control, [&] {
    const auto on_device = gpu->use_device();
    auto comm = std::make_shared<WatchedComm>(gpu, limits);
    comm->start(id, control.world_size(), control.rank());
    made = std::make_unique<NcclCommunicator>(std::move(gpu), std::move(comm));
  });
  return made;
}

}  // namespace lockstep::dist::nccl
