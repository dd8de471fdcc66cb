#include "dist/nccl/nccl_communicator.h"

#include <chrono>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

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

 private:
  Mark done_;
  OwnedComm& comm_;
  at::DeviceIndex device_;
};

}  // namespace

OwnedComm::~OwnedComm() {
  if (comm_ == nullptr) return;
  // A code from here could reach nobody: the communicator is given up either way.
  static_cast<void>(failed_ ? ncclCommAbort(comm_) : ncclCommDestroy(comm_));
}

void OwnedComm::require(ncclResult_t result, std::string_view call) {
  if (result != ncclSuccess) failed_ = true;
  check_nccl(result, call);
}

void OwnedComm::check_health() {
  ncclResult_t state = ncclSuccess;
  require(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  if (state != ncclInProgress) require(state, "a collective under way");
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

std::unique_ptr<Work> NcclCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device_);
  bytes_reduced_ += payload_bytes(values_K);
  if (values_K.numel() == 0) return std::make_unique<DoneWork>();
  return enqueue_after_caller({values_K}, [&] {
    if (op != ReduceOp::kSum || !is_16_bit_float(values_K)) return sum_or_extreme(values_K, op);
    const at::Tensor wide_K = values_K.to(at::kFloat);
    sum_or_extreme(wide_K, op);
    values_K.copy_(wide_K);
  });
}

std::unique_ptr<Work> NcclCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, num_ranks_, device_);
  bytes_reduced_ += payload_bytes(values_NK);
  if (out_K.numel() == 0) return std::make_unique<DoneWork>();
  return enqueue_after_caller({out_K, values_NK}, [&] {
    const bool widen = is_16_bit_float(out_K);
    const at::Tensor from_NK = widen ? values_NK.to(at::kFloat) : values_NK;
    const at::Tensor to_K = widen ? at::empty(out_K.sizes(), from_NK.options()) : out_K;
    comm_.require(
        ncclReduceScatter(from_NK.const_data_ptr(), to_K.mutable_data_ptr(), num_items(to_K),
                          nccl_type(to_K.scalar_type()), ncclSum, comm_.get(), stream_.stream()),
        "ncclReduceScatter");
    if (widen) out_K.copy_(to_K);
  });
}

std::unique_ptr<Work> NcclCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, num_ranks_, device_);
  if (values_K.numel() == 0) return std::make_unique<DoneWork>();
  return enqueue_after_caller({out_NK, values_K}, [&] {
    comm_.require(
        ncclAllGather(values_K.const_data_ptr(), out_NK.mutable_data_ptr(), num_items(values_K),
                      nccl_type(values_K.scalar_type()), comm_.get(), stream_.stream()),
        "ncclAllGather");
  });
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
  const auto work = enqueue_after_caller({}, [&] { sum_or_extreme(barrier_1_, ReduceOp::kMax); });
  work->wait();
  const c10::cuda::CUDAGuard on_device(device_.index());
  const Mark done(stream_);
  while (!done.is_reached()) {
    comm_.check_health();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  check(color >= 0, "split needs a color >= 0");
  const c10::cuda::CUDAGuard on_device(device_.index());
  ncclComm_t part = nullptr;
  comm_.require(ncclCommSplit(comm_.get(), color, key, &part, nullptr), "ncclCommSplit");
  return std::make_unique<NcclCommunicator>(OwnedComm(part), device_.index());
}

}  // namespace lockstep::dist::nccl
