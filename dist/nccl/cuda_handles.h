#pragma once

#include <memory>
#include <string_view>

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

/// Owners of CUDA's and NCCL's handles. For dist/nccl only.
namespace lockstep::dist::nccl {

/// Throw Error(kUnavailable) naming the call and the reason unless it succeeded.
void check_cuda(cudaError_t result, std::string_view call);
void check_nccl(ncclResult_t result, std::string_view call);

/// A point on a stream that another stream can wait for; the host runs on.
class Mark {
 public:
  explicit Mark(const c10::cuda::CUDAStream& stream);
  /// Later work of this stream starts after the mark.
  void hold(const c10::cuda::CUDAStream& stream) const;
  bool is_reached() const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const;
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

}  // namespace lockstep::dist::nccl
