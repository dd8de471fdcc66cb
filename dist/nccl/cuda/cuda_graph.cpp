#include "dist/nccl/cuda/cuda_graph.h"

#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "dist/nccl/cuda/check_cuda.h"

namespace lockstep::dist::nccl {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using PoolId = c10::MempoolId_t;

/// Returns an unused pool id. LibTorch's graphs count from 1, so these start far above.
PoolId next_pool() {
  static std::atomic<c10::CaptureId_t> last{c10::CaptureId_t{1} << 40};
  return {++last, 0};
}

/// Allocates the memory of one stream from one pool while this object exists.
class PoolGuard {
 public:
  PoolGuard(c10::DeviceIndex index, PoolId pool, cudaStream_t stream) : index_(index), pool_(pool) {
    allocator::beginAllocateToPool(index, pool, [stream](cudaStream_t of) { return of == stream; });
  }
  ~PoolGuard() { allocator::endAllocateToPool(index_, pool_); }
  PoolGuard(const PoolGuard&) = delete;
  PoolGuard& operator=(const PoolGuard&) = delete;

 private:
  c10::DeviceIndex index_;
  PoolId pool_;
};

using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(&cudaGraphDestroy)>;

/// Captures the kernels that `body` launches on `stream`. Other threads may call CUDA as usual
/// meanwhile.
Graph captured(cudaStream_t stream, const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  try {
    body();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    static_cast<void>(cudaGetLastError());
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  return {graph, cudaGraphDestroy};
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(int device_index) : index_(static_cast<c10::DeviceIndex>(device_index)) {}
  ~CudaGraph() override {
    try {
      forget();
    } catch (const std::exception&) {  // the device failed, which others report
    }
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void capture(const std::function<void()>& body) override {
    forget();
    const c10::cuda::CUDAGuard on_device(index_);
    if (!stream_) stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_);
    // The memory of the uncaptured work is no longer needed, and none may be freed during the
    // capture.
    allocator::emptyCache();
    pool_ = next_pool();
    try {
      // The default stream cannot be captured.
      const c10::cuda::CUDAStreamGuard on_stream(*stream_);
      const PoolGuard to_pool(index_, *pool_, stream_->stream());
      const Graph graph = captured(stream_->stream(), body);
      check_cuda(cudaGraphInstantiateWithFlags(&work_, graph.get(),
                                               cudaGraphInstantiateFlagAutoFreeOnLaunch),
                 "cudaGraphInstantiateWithFlags");
    } catch (...) {
      const std::exception_ptr reason = std::current_exception();
      try {
        forget();
      } catch (const std::exception&) {
      }
      std::rethrow_exception(reason);
    }
  }

  void replay() override {
    check(work_ != nullptr, "replay() without capture()");
    // Launched on the caller's stream, so it is ordered like the work it replaces.
    const c10::cuda::CUDAGuard on_device(index_);
    check_cuda(cudaGraphLaunch(work_, c10::cuda::getCurrentCUDAStream(index_).stream()),
               "cudaGraphLaunch");
  }

  void forget() override {
    const c10::cuda::CUDAGuard on_device(index_);
    // The graph first: it uses the pool's memory.
    if (work_ != nullptr) static_cast<void>(cudaGraphExecDestroy(std::exchange(work_, nullptr)));
    if (pool_) allocator::releasePool(index_, *std::exchange(pool_, std::nullopt));
  }

 private:
  const c10::DeviceIndex index_;
  std::optional<c10::cuda::CUDAStream> stream_;
  std::optional<PoolId> pool_;
  cudaGraphExec_t work_ = nullptr;
};

}  // namespace

std::shared_ptr<DeviceGraph> make_cuda_graph(int device_index) {
  return std::make_shared<CudaGraph>(device_index);
}

}  // namespace lockstep::dist::nccl
