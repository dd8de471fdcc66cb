#include "dist/nccl/nccl_communicator.h"

#include <chrono>
#include <thread>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <fmt/format.h>

#include "base/error.h"
#include "dist/backend_parts.h"

namespace lockstep::dist::nccl {
namespace {

ncclDataType_t nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kLong:
      return ncclInt64;
    default:
      return ncclUint8;  // check_values() let no other pass
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kSum:
      break;
  }
  return ncclSum;
}

bool is_16_bit_float(const at::Tensor& values) {
  return values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kHalf;
}

size_t num_items(const at::Tensor& values) { return static_cast<size_t>(values.numel()); }

class NcclWork final : public Work {
 public:
  NcclWork(Mark done, OwnedComm& comm, at::DeviceIndex device)
      : done_(std::move(done)), comm_(comm), device_(device) {}

  void wait() override {
    comm_.check_health();
    done_.hold(c10::cuda::getCurrentCUDAStream(device_));
  }

  void wait_on_host() override {
    wait();
    const c10::cuda::CUDAGuard on_device(device_);
    comm_.wait_until([&] { return done_.is_reached(); }, "a collective");
  }

 private:
  Mark done_;
  OwnedComm& comm_;
  at::DeviceIndex device_;
};

}  // namespace

OwnedComm::~OwnedComm() {
  if (comm_ == nullptr) return;
  // A code from here could reach nobody: the communicator is given up either way.
  if (!failed_) static_cast<void>(ncclCommFinalize(comm_));
  try {
    if (!failed_) wait_until([&] { return state() != ncclInProgress; }, "the end of NCCL");
  } catch (const Error&) {
    // failed_ says it
  }
  static_cast<void>(failed_ ? ncclCommAbort(comm_) : ncclCommDestroy(comm_));
}

ncclResult_t OwnedComm::state() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t answer = ncclCommGetAsyncError(comm_, &state);
  return answer == ncclSuccess ? state : answer;
}

void OwnedComm::check_health() {
  const ncclResult_t now = state();
  failed_ = failed_ || (now != ncclSuccess && now != ncclInProgress);
  if (failed_) check_nccl(now, "a collective under way");
}

void OwnedComm::require(ncclResult_t result, std::string_view call) {
  if (result == ncclInProgress) {
    wait_until([&] { return (result = state()) != ncclInProgress; }, call);
  }
  failed_ = failed_ || result != ncclSuccess;
  check_nccl(result, call);
}

void OwnedComm::wait_until(const std::function<bool()>& is_done, std::string_view what) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  while (!is_done()) {
    check_health();
    if (std::chrono::duration<double>(Clock::now() - start).count() > timeout_s_) {
      failed_ = true;
      throw Error(ExitCode::kWatchdog, "dist.nccl",
                  fmt::format("{} did not end within {} s: some rank hangs or is cut off "
                              "(sync.timeout_s)",
                              what, timeout_s_));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

NcclCommunicator::NcclCommunicator(OwnedComm comm, int device_index)
    : comm_(std::move(comm)),
      device_(at::kCUDA, static_cast<at::DeviceIndex>(device_index)),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_.index())),
      barrier_1_(at::zeros({1}, at::TensorOptions(at::kByte).device(device_))) {
  comm_.require(ncclCommUserRank(comm_.get(), &rank_), "ncclCommUserRank");
  comm_.require(ncclCommCount(comm_.get(), &num_ranks_), "ncclCommCount");
}

template <typename Enqueue>
std::unique_ptr<Work> NcclCommunicator::enqueue_after_caller(
    std::initializer_list<at::Tensor> touched, const Enqueue& enqueue) {
  const c10::cuda::CUDAGuard on_device(device_.index());
  comm_.check_health();
  Mark(c10::cuda::getCurrentCUDAStream(device_.index())).hold(stream_);
  {
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    enqueue();
  }
  for (const at::Tensor& tensor : touched)
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream_);
  return std::make_unique<NcclWork>(Mark(stream_), comm_, device_.index());
}

void NcclCommunicator::sum_or_extreme(const at::Tensor& values_K, ReduceOp op) {
  comm_.require(
      ncclAllReduce(values_K.const_data_ptr(), values_K.mutable_data_ptr(), num_items(values_K),
                    nccl_type(values_K.scalar_type()), nccl_op(op), comm_.get(), stream_.stream()),
      "ncclAllReduce");
}

at::Tensor NcclCommunicator::exchange_and_add(const at::Tensor& values_NK) {
  const at::Tensor from_ranks_NK = at::empty_like(values_NK);
  const int64_t num_bytes = static_cast<int64_t>(values_NK.nbytes()) / num_ranks_;
  const auto* outgoing = static_cast<const std::byte*>(values_NK.const_data_ptr());
  auto* incoming = static_cast<std::byte*>(from_ranks_NK.mutable_data_ptr());
  // Within the group calls only line up; that they are under way is its end's answer. The group is
  // closed whatever happens.
  ncclResult_t fault = ncclGroupStart();
  const auto line_up = [&](ncclResult_t result) {
    if (fault == ncclSuccess && result != ncclInProgress) fault = result;
  };
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const auto count = static_cast<size_t>(num_bytes);
    const int64_t place = peer * num_bytes;
    line_up(ncclSend(outgoing + place, count, ncclUint8, peer, comm_.get(), stream_.stream()));
    line_up(ncclRecv(incoming + place, count, ncclUint8, peer, comm_.get(), stream_.stream()));
  }
  const ncclResult_t end = ncclGroupEnd();
  comm_.require(fault == ncclSuccess ? end : fault, "exchange of pieces: ncclSend, ncclRecv");
  return from_ranks_NK.view({num_ranks_, -1})
      .sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat)
      .to(values_NK.scalar_type());
}

void NcclCommunicator::gather_pieces(const at::Tensor& out_NK, const at::Tensor& values_K) {
  comm_.require(
      ncclAllGather(values_K.const_data_ptr(), out_NK.mutable_data_ptr(), num_items(values_K),
                    nccl_type(values_K.scalar_type()), comm_.get(), stream_.stream()),
      "ncclAllGather");
}

std::unique_ptr<Work> NcclCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device_);
  bytes_reduced_ += payload_bytes(values_K);
  if (values_K.numel() == 0) return std::make_unique<DoneWork>();
  return enqueue_after_caller({values_K}, [&] {
    if (op != ReduceOp::kSum || !is_16_bit_float(values_K)) return sum_or_extreme(values_K, op);
    const int64_t num_padded = (values_K.numel() + num_ranks_ - 1) / num_ranks_ * num_ranks_;
    const at::Tensor padded_NK = at::zeros({num_padded}, values_K.options());
    const at::Tensor there_K = padded_NK.narrow(0, 0, values_K.numel());
    there_K.copy_(values_K.view({-1}));
    gather_pieces(padded_NK, exchange_and_add(padded_NK));
    values_K.view({-1}).copy_(there_K);
  });
}

std::unique_ptr<Work> NcclCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, num_ranks_, device_);
  bytes_reduced_ += payload_bytes(values_NK);
  if (out_K.numel() == 0) return std::make_unique<DoneWork>();
  return enqueue_after_caller({out_K, values_NK}, [&] {
    if (is_16_bit_float(out_K)) {
      out_K.view({-1}).copy_(exchange_and_add(values_NK.view({-1})));
      return;
    }
    comm_.require(
        ncclReduceScatter(values_NK.const_data_ptr(), out_K.mutable_data_ptr(), num_items(out_K),
                          nccl_type(out_K.scalar_type()), ncclSum, comm_.get(), stream_.stream()),
        "ncclReduceScatter");
  });
}

std::unique_ptr<Work> NcclCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, num_ranks_, device_);
  if (values_K.numel() == 0) return std::make_unique<DoneWork>();
  return enqueue_after_caller({out_NK, values_K}, [&] { gather_pieces(out_NK, values_K); });
}

void NcclCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device_);
  check(root >= 0 && root < num_ranks_, "broadcast from a rank that does not exist");
  if (values_K.numel() == 0) return;
  const auto work = enqueue_after_caller({values_K}, [&] {
    comm_.require(
        ncclBroadcast(values_K.const_data_ptr(), values_K.mutable_data_ptr(), num_items(values_K),
                      nccl_type(values_K.scalar_type()), root, comm_.get(), stream_.stream()),
        "ncclBroadcast");
  });
  work->wait();
}

void NcclCommunicator::barrier() {
  enqueue_after_caller({}, [&] { sum_or_extreme(barrier_1_, ReduceOp::kMax); })->wait_on_host();
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  check(color >= 0, "split needs a color >= 0");
  const c10::cuda::CUDAGuard on_device(device_.index());
  ncclComm_t part = nullptr;
  comm_.require(ncclCommSplit(comm_.get(), color, key, &part, nullptr), "ncclCommSplit");
  return std::make_unique<NcclCommunicator>(OwnedComm(part, comm_.timeout_s()), device_.index());
}

}  // namespace lockstep::dist::nccl
