// The only source of liblockstep_nccl.so that is compiled against CUDA and NCCL: calls, graphs,
// memory, and the module's table of functions.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

#include "base/error.h"
#include "base/tensors/device_backend.h"
#include "dist/nccl/gpu_backend.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/gpu_memory.h"
#include "dist/nccl/kept_kernels.h"
#include "dist/nccl/load_nccl.h"
#include "dist/nccl/nccl_communicator.h"

namespace lockstep::dist::nccl {

// CudaCalls, the real GpuCalls: thin wrappers of CUDA, NCCL and LibTorch's CUDA allocator. Every
// CUDA error becomes Error(kUnavailable) and is cleared. NCCL's results are returned, since the
// caller polls.

namespace {

Error unavailable(std::string_view call, std::string_view reason) {
  return {ExitCode::kUnavailable, "dist.nccl", fmt::format("{}: {}", call, reason)};
}

void check_nccl(ncclResult_t result, std::string_view call) {
  if (result != ncclSuccess) throw unavailable(call, ncclGetErrorString(result));
}

void check_cuda(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // otherwise the next unrelated call would report it again
  throw unavailable(call, cudaGetErrorString(result));
}

Result result_of(ncclResult_t result) {
  if (result == ncclSuccess) return {Result::Kind::kDone};
  if (result == ncclInProgress) return {Result::Kind::kInProgress};
  return {Result::Kind::kFailed, ncclGetErrorString(result)};
}

// Sums of float16 and bfloat16 never come here: the communicator adds them in float32.
ncclDataType_t type_of(const at::Tensor& values) {
  switch (values.scalar_type()) {
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
      return ncclUint8;  // check_values() excludes other types
  }
}

/// Operations by ReduceOp.
constexpr std::array kOperations{ncclSum, ncclMin, ncclMax};

int width_of(const at::Tensor& items) { return static_cast<int>(items.element_size()); }
size_t num_items(const at::Tensor& values) { return static_cast<size_t>(values.numel()); }
ncclComm_t as_comm(CommHandle comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t as_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(EventHandle event) { return static_cast<cudaEvent_t>(event); }

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
  ~CudaGraph() override { forget_quietly(); }
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
      forget_quietly();
      throw;
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
  void forget_quietly() noexcept {
    try {
      forget();
    } catch (const std::exception&) {  // the device failed, which others report
    }
  }

  const c10::DeviceIndex index_;
  std::optional<c10::cuda::CUDAStream> stream_;
  std::optional<PoolId> pool_;
  cudaGraphExec_t work_ = nullptr;
};

class CudaCalls final : public GpuCalls {
 public:
  explicit CudaCalls(int device_index)
      : device_(at::kCUDA, static_cast<at::DeviceIndex>(device_index)) {}

  at::Device device() const override { return device_; }

  void require_usable() override {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count), "no usable NVIDIA GPU: cudaGetDeviceCount");
    if (device_.index() < 0 || device_.index() >= count)
      throw Error(
          ExitCode::kUnavailable, "dist.nccl",
          fmt::format("GPU {} was requested, but this process sees {} (CUDA_VISIBLE_DEVICES?)",
                      device_.index(), count));
    // Opening LibTorch's CUDA library registers its kernels. Programs do not link it.
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) == nullptr)
      throw Error(ExitCode::kUnavailable, "dist.nccl",
                  fmt::format("cannot open LibTorch's CUDA library: {} (a GPU needs the full wheel "
                              "of torch, which tools/setup installs if it finds a GPU)",
                              dlerror()));
    const auto on_device = use_device();
    // High priority: collectives must start even if compute kernels fill the device.
    stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_.index());
  }

  std::shared_ptr<void> use_device() override {
    return std::make_shared<c10::cuda::CUDAGuard>(device_.index());
  }

  std::shared_ptr<DeviceGraph> make_graph() override {
    return std::make_shared<CudaGraph>(device_.index());
  }

  std::shared_ptr<GpuCalls> beside() override {
    auto other = std::make_shared<CudaCalls>(device_.index());
    // Low priority: copies must not delay the kernels of training.
    other->stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index());
    return other;
  }

  Stream callers_stream() override {
    return c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  }
  Stream own_stream() override { return stream_->stream(); }
  void enqueue_kernels(std::function<void()> part) override {
    // LibTorch's kernels run on the thread's current stream.
    const c10::cuda::CUDAStreamGuard on_stream(*stream_);
    part();
  }
  void keep_until_done(const at::Tensor& tensor) override {
    // The allocator reuses the memory only after an event that it records on this stream.
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), *stream_);
  }

  EventHandle record(Stream stream) override {
    cudaEvent_t event = nullptr;
    // Without timing, events are cheaper and do not synchronise.
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    const cudaError_t result = cudaEventRecord(event, as_stream(stream));
    // check_cuda() throws below, and the handle would be lost.
    if (result != cudaSuccess) destroy(event);
    check_cuda(result, "cudaEventRecord");
    return event;
  }
  void hold(Stream stream, EventHandle event) override {
    check_cuda(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "cudaStreamWaitEvent");
  }
  bool is_reached(EventHandle event) override {
    const cudaError_t state = cudaEventQuery(as_event(event));
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // "not ready" is no error: clear it
      return false;
    }
    check_cuda(state, "cudaEventQuery");
    return true;
  }
  void destroy(EventHandle event) override { static_cast<void>(cudaEventDestroy(as_event(event))); }

  std::shared_ptr<std::byte> pin_memory(int64_t num_bytes) override {
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, static_cast<size_t>(num_bytes), cudaHostAllocDefault),
               fmt::format("{} bytes of page-locked memory: cudaHostAlloc", num_bytes));
    return {static_cast<std::byte*>(memory),
            // cudaFreeHost may wait for the device, so callers free idle memory only.
            [](std::byte* begin) { static_cast<void>(cudaFreeHost(begin)); }};
  }
  void copy_to_host(std::byte* to, const std::byte* from, int64_t num_bytes,
                    const at::Tensor& /*owner*/) override {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost,
                               stream_->stream()),
               "cudaMemcpyAsync");
  }

  void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                 const at::Tensor& packed_K) override {
    check_cuda(
        launch_pack_kept(view_of(mask), mask.num_items, width_of(items_E), items_E.const_data_ptr(),
                         packed_K.mutable_data_ptr(), as_stream(callers_stream())),
        "the kernel that packs gradients");
  }
  void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                   const at::Tensor& items_E) override {
    check_cuda(launch_unpack_kept(view_of(mask), mask.num_items, width_of(items_E),
                                  packed_K.const_data_ptr(), items_E.mutable_data_ptr(),
                                  as_stream(callers_stream())),
               "the kernel that unpacks gradients");
  }

  std::string make_unique_id() override {
    ncclUniqueId id{};
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return {id.internal, sizeof(id.internal)};
  }
  Result init(const std::string& unique_id, int num_ranks, int rank, CommHandle* comm) override {
    ncclUniqueId id{};
    check(unique_id.size() == sizeof(id.internal), "NCCL's unique id was truncated");
    std::memcpy(id.internal, unique_id.data(), sizeof(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    // Non-blocking: calls return ncclInProgress, so that the host can poll and give up.
    config.blocking = 0;
    return result_of(
        ncclCommInitRankConfig(reinterpret_cast<ncclComm_t*>(comm), num_ranks, id, rank, &config));
  }
  Result split(CommHandle comm, int color, int key, CommHandle* part) override {
    return result_of(ncclCommSplit(as_comm(comm), color, key, reinterpret_cast<ncclComm_t*>(part),
                                   /*config=*/nullptr));
  }
  int rank(CommHandle comm) override {
    int rank = 0;
    check_nccl(ncclCommUserRank(as_comm(comm), &rank), "ncclCommUserRank");
    return rank;
  }
  int num_ranks(CommHandle comm) override {
    int count = 0;
    check_nccl(ncclCommCount(as_comm(comm), &count), "ncclCommCount");
    return count;
  }
  Result state(CommHandle comm) override {
    ncclResult_t state = ncclSuccess;
    // Two results: that of the query itself, and the state it asked for.
    const ncclResult_t answer = ncclCommGetAsyncError(as_comm(comm), &state);
    return result_of(answer == ncclSuccess ? state : answer);
  }
  Result finalize(CommHandle comm) override { return result_of(ncclCommFinalize(as_comm(comm))); }
  Result destroy_comm(CommHandle comm) override {
    return result_of(ncclCommDestroy(as_comm(comm)));
  }
  Result abort(CommHandle comm) override { return result_of(ncclCommAbort(as_comm(comm))); }

  Result all_reduce(CommHandle comm, const at::Tensor& values_K, ReduceOp op) override {
    return result_of(ncclAllReduce(values_K.const_data_ptr(), values_K.mutable_data_ptr(),
                                   num_items(values_K), type_of(values_K),
                                   kOperations.at(static_cast<size_t>(op)), as_comm(comm),
                                   stream_->stream()));
  }
  Result reduce_scatter(CommHandle comm, const at::Tensor& out_K,
                        const at::Tensor& values_NK) override {
    return result_of(ncclReduceScatter(values_NK.const_data_ptr(), out_K.mutable_data_ptr(),
                                       num_items(out_K), type_of(out_K), ncclSum, as_comm(comm),
                                       stream_->stream()));
  }
  Result all_gather(CommHandle comm, const at::Tensor& out_NK,
                    const at::Tensor& values_K) override {
    return result_of(ncclAllGather(values_K.const_data_ptr(), out_NK.mutable_data_ptr(),
                                   num_items(values_K), type_of(values_K), as_comm(comm),
                                   stream_->stream()));
  }
  Result broadcast(CommHandle comm, const at::Tensor& values_K, int root) override {
    return result_of(ncclBroadcast(values_K.const_data_ptr(), values_K.mutable_data_ptr(),
                                   num_items(values_K), type_of(values_K), root, as_comm(comm),
                                   stream_->stream()));
  }
  Result all_to_all(CommHandle comm, const at::Tensor& out_NK,
                    const at::Tensor& values_NK) override {
    int num_ranks = 0;
    ncclResult_t fault = ncclCommCount(as_comm(comm), &num_ranks);
    if (fault != ncclSuccess) return result_of(fault);
    const size_t num_bytes = values_NK.nbytes() / static_cast<size_t>(num_ranks);
    const auto* outgoing = static_cast<const std::byte*>(values_NK.const_data_ptr());
    auto* incoming = static_cast<std::byte*>(out_NK.mutable_data_ptr());
    // Within a group, calls are only queued; ncclGroupEnd() starts them. It must be called in any
    // case.
    fault = ncclGroupStart();
    const auto line_up = [&](ncclResult_t result) {
      if (fault == ncclSuccess && result != ncclInProgress) fault = result;
    };
    for (int peer = 0; peer < num_ranks; ++peer) {
      const size_t place = static_cast<size_t>(peer) * num_bytes;
      line_up(
          ncclSend(outgoing + place, num_bytes, ncclUint8, peer, as_comm(comm), stream_->stream()));
      line_up(
          ncclRecv(incoming + place, num_bytes, ncclUint8, peer, as_comm(comm), stream_->stream()));
    }
    const ncclResult_t end = ncclGroupEnd();
    return result_of(fault == ncclSuccess ? end : fault);
  }

 private:
  const at::Device device_;
  std::optional<c10::cuda::CUDAStream> stream_;  ///< from require_usable() on
};

int library_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // "no device" and "no driver" are no errors here
  return 0;
}

void cuda_device_id(int device_index, char* id) {
  id[0] = '\0';
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device_index) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  std::string text = "GPU-";
  for (const char byte : properties.uuid.bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  text.resize(std::min<size_t>(text.size(), kDeviceIdBytes - 1));
  std::copy_n(text.c_str(), text.size() + 1, id);
}

// MemoryCalls over CUDA and LibTorch's caching allocator.

constexpr size_t kAllPools = 0;  // StatType::AGGREGATE

/// LibTorch's caching allocator.
class CudaMemory final : public MemoryCalls {
 public:
  explicit CudaMemory(int device_index) : index_(static_cast<c10::DeviceIndex>(device_index)) {
    CudaCalls(device_index).require_usable();
    at::globalContext().lazyInitDevice(at::kCUDA);  // initialises the allocator
  }

  Bytes bytes() override {
    const c10::cuda::CUDAGuard on_device(index_);
    size_t free = 0, total = 0;
    if (const cudaError_t result = cudaMemGetInfo(&free, &total); result != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw Error(ExitCode::kUnavailable, "gpu",
                  fmt::format("cudaMemGetInfo: {}", cudaGetErrorString(result)));
    }
    return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
  }
  void give_back() override {
    allocator::emptyCache();
    allocator::setMemoryFraction(1, index_);
  }
  int64_t taken() override {
    return allocator::getDeviceStats(index_).reserved_bytes[kAllPools].current;
  }
  GpuMemoryUse use() override {
    const auto stats = allocator::getDeviceStats(index_);
    return {.allocated = stats.allocated_bytes[kAllPools].current,
            .reserved = stats.reserved_bytes[kAllPools].current,
            .peak = stats.allocated_bytes[kAllPools].peak,
            .num_ooms = stats.num_ooms};
  }
  void set_fraction(double fraction) override { allocator::setMemoryFraction(fraction, index_); }
  void reserve(int64_t num_bytes) override {
    const c10::cuda::CUDAGuard on_device(index_);
    // Allocate and free: the memory stays in the allocator's cache.
    allocator::raw_delete(allocator::raw_alloc(static_cast<size_t>(num_bytes)));
  }

 private:
  const c10::DeviceIndex index_;
};

// Functions of the module's table.

Communicator* make_communicator(Communicator& control, int device_index, double timeout_s) {
  return start_communicator(control, std::make_shared<CudaCalls>(device_index),
                            {.timeout_s = timeout_s})
      .release();
}

GpuMemoryFacts set_up_memory_of(int device_index, const GpuMemoryOptions& options) {
  CudaMemory memory(device_index);
  return set_up_memory(memory, options);
}

GpuMemoryUse memory_use_of(int device_index) { return CudaMemory(device_index).use(); }

}  // namespace
}  // namespace lockstep::dist::nccl

// The module's only exported symbol. Everything else stays inside the library.
extern "C" __attribute__((visibility("default")))
const lockstep::dist::nccl::ModuleTable lockstep_nccl_module{
    LOCKSTEP_BUILD_ID,
    lockstep::dist::nccl::library_version,
    lockstep::dist::nccl::num_cuda_devices,
    lockstep::dist::nccl::cuda_device_id,
    lockstep::dist::nccl::set_up_memory_of,
    lockstep::dist::nccl::memory_use_of,
    lockstep::dist::nccl::make_communicator};
