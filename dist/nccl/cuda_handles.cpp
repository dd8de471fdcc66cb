#include "dist/nccl/cuda_handles.h"

#include <string>

#include "base/error.h"

namespace lockstep::dist::nccl {
namespace {

Error unavailable(std::string_view call, const char* reason) {
  return {ExitCode::kUnavailable, "dist.nccl", std::string(call) + ": " + reason};
}

}  // namespace

void check_cuda(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next unrelated call would report it again
  throw unavailable(call, cudaGetErrorString(result));
}

void check_nccl(ncclResult_t result, std::string_view call) {
  if (result != ncclSuccess) throw unavailable(call, ncclGetErrorString(result));
}

void Mark::Destroy::operator()(cudaEvent_t event) const {
  static_cast<void>(cudaEventDestroy(event));
}

Mark::Mark(const c10::cuda::CUDAStream& stream) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  event_.reset(event);
  check_cuda(cudaEventRecord(event, stream.stream()), "cudaEventRecord");
}

void Mark::hold(const c10::cuda::CUDAStream& stream) const {
  check_cuda(cudaStreamWaitEvent(stream.stream(), event_.get(), 0), "cudaStreamWaitEvent");
}

bool Mark::is_reached() const {
  const cudaError_t state = cudaEventQuery(event_.get());
  if (state == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // "not ready" is an answer, not a fault to be kept
    return false;
  }
  check_cuda(state, "cudaEventQuery");
  return true;
}

}  // namespace lockstep::dist::nccl
