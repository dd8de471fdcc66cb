// Packing and staging on GPUs.
#include "dist/nccl/gpu_backend.h"

#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"

namespace lockstep::dist::nccl {

// GpuPacking: computes word masks and prefix sums on the host once per mask; the kernels use them
// every step.

static void check_shapes(const DeviceMask& mask, const at::Tensor& items_E,
                         const at::Tensor& packed_K) {
  const auto width = items_E.element_size();
  check(items_E.is_contiguous() && packed_K.is_contiguous() && items_E.numel() == mask.num_items &&
            packed_K.numel() == mask.num_kept && packed_K.scalar_type() == items_E.scalar_type() &&
            (width == 2 || width == 4 || width == 8),
        "packed items do not fit their mask");
}

MaskView view_of(const DeviceMask& mask) {
  return {static_cast<const uint64_t*>(mask.words_W.const_data_ptr()),
          mask.before_W.const_data_ptr<int64_t>()};
}

DeviceMask GpuPacking::to_device(const uint8_t* bits, int64_t num_items) const {
  const int64_t num_words = (num_items + kItemsPerWord - 1) / kItemsPerWord;
  const at::Tensor words_W = at::zeros({num_words}, at::kLong);
  const at::Tensor before_W = at::zeros({num_words}, at::kLong);
  auto* words = static_cast<uint64_t*>(words_W.mutable_data_ptr());
  auto* before = before_W.mutable_data_ptr<int64_t>();
  if (num_items > 0) std::memcpy(words, bits, static_cast<size_t>(num_mask_bytes(num_items)));
  // Prefix sums by word: with them each thread finds the position of its item alone.
  int64_t num_kept = 0;
  for (int64_t i = 0; i < num_words; ++i) {
    before[i] = num_kept;
    num_kept += std::popcount(words[i]);
  }
  const auto on_device = gpu_->use_device();
  return {num_items, num_kept, words_W.to(gpu_->device()), before_W.to(gpu_->device())};
}

void GpuPacking::pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                           const at::Tensor& packed_K) const {
  check_shapes(mask, items_E, packed_K);
  const auto on_device = gpu_->use_device();
  gpu_->pack_kept(mask, items_E, packed_K);
}

void GpuPacking::unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                             const at::Tensor& items_E) const {
  check_shapes(mask, items_E, packed_K);
  const auto on_device = gpu_->use_device();
  gpu_->unpack_kept(mask, packed_K, items_E);
}

// PinnedStager: copies to pinned memory on a low-priority stream, so that a save does not delay
// training.

namespace {

// Interval between two polls of an event.
constexpr std::chrono::microseconds kLook{200};

/// Waits on the host while the communicator is healthy. Its watchdog bounds the time that the
/// device may wait for a peer.
void wait_for(GpuCalls& gpu, WatchedComm& comm, const Event& event) {
  const auto on_device = gpu.use_device();
  while (!event.is_reached()) {
    comm.require_healthy();
    std::this_thread::sleep_for(kLook);
  }
  comm.require_healthy();  // after an abort the stream continues, with undefined data
}

class PinnedCopy final : public StagedCopy {
 public:
  PinnedCopy(std::shared_ptr<GpuCalls> gpu, std::shared_ptr<WatchedComm> comm,
             std::shared_ptr<Event> done, std::vector<at::Tensor> copies)
      : gpu_(std::move(gpu)),
        comm_(std::move(comm)),
        done_(std::move(done)),
        copies_(std::move(copies)) {}

  const std::vector<at::Tensor>& copies() const override { return copies_; }
  void hold_caller() override {
    const auto on_device = gpu_->use_device();
    done_->hold(gpu_->callers_stream());
  }
  void wait_on_host() override { wait_for(*gpu_, *comm_, *done_); }

 private:
  const std::shared_ptr<GpuCalls> gpu_;
  const std::shared_ptr<WatchedComm> comm_;
  const std::shared_ptr<Event> done_;
  const std::vector<at::Tensor> copies_;
};

/// Returns the tensor as checkpoints need it: row-major, without pending conjugation or negation.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

/// Leaks memory of copies on a device that hangs. Freeing it would wait for the device.
void never_free(std::shared_ptr<std::byte> memory) {
  static std::mutex mutex;
  static auto* const lost = new std::vector<std::shared_ptr<std::byte>>;
  const std::lock_guard lock(mutex);
  lost->push_back(std::move(memory));
}

}  // namespace

PinnedStager::~PinnedStager() {
  if (!is_idle()) never_free(std::move(memory_));
}

bool PinnedStager::is_idle() const {
  try {
    const auto on_device = gpu_->use_device();
    return last_ == nullptr || last_->is_reached();
  } catch (const std::exception&) {
    return false;  // the device failed
  }
}

void PinnedStager::prepare(int64_t num_bytes) {
  if (num_bytes <= num_bytes_) return;
  const auto on_device = gpu_->use_device();
  // Frees pinned memory only when no copy writes to it.
  if (last_ != nullptr && !last_->is_reached()) wait_for(*gpu_, *comm_, *last_);
  num_bytes_ = 0;
  memory_.reset();
  memory_ = gpu_->pin_memory(num_bytes);
  num_bytes_ = num_bytes;
}

std::unique_ptr<StagedCopy> PinnedStager::begin(const std::vector<StagedPart>& parts) {
  comm_->require_healthy();
  const auto on_device = gpu_->use_device();
  prepare(bytes_of(parts));
  std::vector<StagedPart> originals;
  for (const StagedPart& part : parts) originals.push_back({plain(part.tensor), part.held});
  // Event A: copies start after all work that the caller has enqueued.
  Event(gpu_, gpu_->callers_stream()).hold(gpu_->own_stream());
  try {
    std::vector<at::Tensor> copies = copy_all(originals);
    last_ = std::make_shared<Event>(gpu_, gpu_->own_stream());
    return std::make_unique<PinnedCopy>(gpu_, comm_, last_, std::move(copies));
  } catch (...) {  // copies that were enqueued may still write
    never_free(std::exchange(memory_, nullptr));
    num_bytes_ = 0;
    throw;
  }
}

std::vector<at::Tensor> PinnedStager::copy_all(const std::vector<StagedPart>& parts) {
  std::vector<at::Tensor> copies;
  std::byte* to = memory_.get();
  for (const auto& [tensor, held] : parts) {
    copies.push_back(at::from_blob(
        to, tensor.sizes(), [memory = memory_](void*) {}, tensor.scalar_type()));
    const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
    const auto item_bytes = static_cast<int64_t>(tensor.element_size());
    for (const auto& range : held.value_or(std::vector<ElementRange>{{0, tensor.numel()}}))
      if (range.num_elements() > 0)
        gpu_->copy_to_host(to + range.begin_E * item_bytes, from + range.begin_E * item_bytes,
                           range.num_elements() * item_bytes, tensor);
    gpu_->keep_until_done(tensor);
    to += padded_bytes(tensor);
  }
  return copies;
}

}  // namespace lockstep::dist::nccl
