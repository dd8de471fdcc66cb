#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/tensors/state_list.h"

namespace lockstep {
class DeviceGraph;
class DevicePacking;
class DeviceStager;
}  // namespace lockstep

/// Collectives between ranks: the interface Communicator, worlds of one rank, checked calls, and
/// helpers of the backends.
namespace lockstep::dist {

enum class ReduceOp { kSum, kMin, kMax };

/// A pending collective. Destroying it without wait() is a bug.
class Work {
 public:
  virtual ~Work() = default;

  /// Orders later kernels of the current stream after the collective. On a CPU backend, blocks
  /// until the collective is done. Throws as the communicator does.
  virtual void wait() = 0;

  /// Blocks until the result is complete, on a GPU too. A lost or hanging peer ends the wait as it
  /// ends wait() on CPUs. Covers all collectives that the communicator began before.
  virtual void wait_on_host() { wait(); }

  /// Waits for other ranks about as long as a thread needs to wake. True if wait() need not wait
  /// for a rank that has not made the call.
  virtual bool wait_briefly() { return false; }
};

/// A point in the work that a thread has enqueued on its stream (Communicator::mark()).
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  /// Returns once that work is done. Throws like Work::wait_on_host().
  virtual void wait_on_host() = 0;
};

/// Memory that all ranks of a communicator map, zeros at first, or the reason why there is none.
struct SharedMemory {
  std::shared_ptr<std::byte> begin;  ///< page-aligned; released with the last copy of this pointer
  std::string why_not;  ///< set if begin is null: "its ranks ..."; may differ between ranks
};

/// The collectives that training needs, seen from one rank.
///
/// Symbols: N = world_size(), r = rank() in [0, N), [K] = contiguous, K items.
/// dtypes: float32, float64, bfloat16, float16, int64, uint8. 16-bit floats are summed in float32
/// and rounded once.
///
/// Guarantees of every backend (tests/dist/communicator_contract.h):
///   order    all N ranks make the same calls, in the same order, with equal K and dtype; a
///            backend need not detect a violation.
///   result   bit-identical on all N ranks. On CPUs sums use a fixed tree over the ranks
///            (dist/tensor_math.h). So bits depend neither on K, nor on how values are
///            grouped into calls, nor on the hosts of the ranks.
///   errors   Error(kUnavailable): a peer is gone; kWatchdog: a peer was late; kDisagree: a peer
///            makes another call. After an error only destruction is allowed.
///   threads  one caller at a time.
///
/// Source: semantics follow MPI 3.1 section 5 (collective communication).
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Device on which tensors must live: the CPU for MPI, this rank's GPU for NCCL.
  virtual at::Device device() const = 0;
  /// True if a call returns before its collective is done. Work::wait() then only orders the
  /// current stream after it, and several collectives may be pending.
  virtual bool is_asynchronous() const { return false; }

  /// Marks the end of the work that the calling thread's current stream has now; null if calls are
  /// not asynchronous. Any thread, also during a call of another one.
  virtual std::shared_ptr<StreamMark> mark() { return nullptr; }
  /// Makes the next collective start after this mark, instead of after all that its caller's stream
  /// has by then. Its input must be complete at the mark. Null: the default order.
  virtual void start_after(std::shared_ptr<StreamMark> /*mark*/) {}

  /// Replaces values_K [K] by its reduction over the N ranks. K = 0 is allowed.
  [[nodiscard]] virtual std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) = 0;

  /// Begins an all_reduce of few bytes without waiting for a rank that has not made the call. Any
  /// thread may wait for the result, before the next call here. Null if this backend cannot, or if
  /// there are too many bytes; nothing has begun then. Ranks may differ in which of the two
  /// functions they call.
  [[nodiscard]] virtual std::unique_ptr<Work> begin_all_reduce(at::Tensor /*values_K*/,
                                                               ReduceOp /*op*/) {
    return nullptr;
  }

  /// Gives rank r piece r, [K], of the sum over ranks of values_NK [N * K]. out_K may be piece r of
  /// values_NK itself; the other pieces keep their values.
  [[nodiscard]] virtual std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                             at::Tensor values_NK) = 0;

  /// Copies rank r's values_K [K] to piece r of out_NK [N * K] on every rank. values_K may be that
  /// piece itself.
  [[nodiscard]] virtual std::unique_ptr<Work> all_gather(at::Tensor out_NK,
                                                         at::Tensor values_K) = 0;

  /// Copies rank root's values_K [K] over every other rank's. Blocks (CPU) or is ordered on the
  /// stream (GPU).
  virtual void broadcast(at::Tensor values_K, int root) = 0;

  /// Returns once every rank has called it; the host waits.
  virtual void barrier() = 0;

  /// Waits on the host until all collectives that began here are done. Throws if one failed. Call
  /// it before the host reads a tensor that depends on a collective on the device, by
  /// copy_to_host() or item(). Otherwise the read itself would wait for a hanging peer until the
  /// communicator is aborted, and then return garbage.
  virtual void settle() {}

  /// Sets the longest wait for a peer from now on and returns the previous one. No effect on
  /// backends that wait without limit. Called between collectives, by the thread that makes them.
  virtual double set_timeout(double timeout_s) { return timeout_s; }

  /// Creates a stager that copies tensors of device() to the host in parallel to the step
  /// (base/tensors/device_backend.h). It fails with this communicator. Null if the host can read
  /// them without waiting. Sends nothing.
  virtual std::shared_ptr<DeviceStager> make_stager() { return nullptr; }
  /// Creates packing kernels for tensors of device() (base/tensors/device_backend.h); null on CPUs.
  /// Sends nothing.
  virtual std::shared_ptr<DevicePacking> make_packing() { return nullptr; }
  /// Creates a graph that records work of device() and replays it (base/tensors/device_backend.h),
  /// except for collectives. Null on CPUs. Sends nothing.
  virtual std::shared_ptr<DeviceGraph> make_graph() { return nullptr; }

  /// Allocates memory that all N ranks map, if they share a host with enough space; else null on
  /// all ranks. No later write into it can fail. Ordering is the caller's: a collective call must
  /// separate a write from another rank's read. Collective, blocks; equal sizes.
  virtual SharedMemory share_memory(int64_t /*num_bytes*/) {
    return {nullptr, "the ranks exchange messages"};
  }

  /// Creates a communicator of the ranks that pass the same color (>= 0), ranked by (key, rank
  /// here). Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Payload bytes that this rank has handed to all_reduce and reduce_scatter since the start.
  virtual int64_t bytes_reduced() const = 0;
};

/// Returns the values on the host; the same tensor if it is there already. First waits for the
/// collectives of `comm` that the values may depend on. Throws like comm.settle(), so it never
/// returns what an aborted collective left.
inline at::Tensor copy_to_host(Communicator& comm, const at::Tensor& values) {
  comm.settle();
  return values.cpu();
}

/// Flags that any rank sends to all others, which poll heard() also during a collective. Flags are
/// the lowest kNumWords bits of a number. Threads: one sender, one reader.
class Notice {
 public:
  static constexpr int kNumWords = 2;

  virtual ~Notice() = default;

  /// Sends those flags of `words` that this rank has not sent before. Call it again while others
  /// may not have received them, since it also drives pending transfers. Throws
  /// Error(kUnavailable).
  virtual void tell(uint32_t words) = 0;
  /// Returns all flags received from other ranks so far.
  virtual uint32_t heard() = 0;
};

// Helpers of the backends.

/// A collective that was complete when its call returned.
class DoneWork final : public Work {
 public:
  void wait() override {}
};

/// Throws Error(kBug) unless the tensor may enter a collective: contiguous, on `device`, of a
/// listed dtype.
void check_values(const at::Tensor& values, at::Device device);

/// Calls check_values() on both, and requires values_NK to have N times as many items of the same
/// dtype.
void check_pieces(const at::Tensor& values_K, const at::Tensor& values_NK, int world_size,
                  at::Device device);

inline int64_t payload_bytes(const at::Tensor& values) {
  return static_cast<int64_t>(values.nbytes());
}

/// World of one rank: every collective is the identity. Lets code that needs a Communicator run
/// without a launcher or MPI, on the CPU or on one GPU.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(at::Device device = at::kCPU) : device_(device) {}

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  at::Device device() const override { return device_; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override {}
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }

 private:
  at::Device device_;
  int64_t bytes_reduced_ = 0;
};

/// Communicator whose ranks compare each call before they make it (sync.check_collectives; like
/// PyTorch's TORCH_DISTRIBUTED_DEBUG=DETAIL). For a backend that detects no mismatch and names no
/// rank, such as NCCL. A call that differs in kind, operation, root, items or dtype throws
/// Error(kDisagree).everywhere(), with the call of each rank. The communicator that carries the
/// comparison names a rank that hangs or is gone. Costs one message of 128 bytes per call, for
/// which the host waits.
class CheckedCommunicator final : public Communicator {
 public:
  /// comparison: a communicator of the same ranks, for this use alone.
  CheckedCommunicator(std::unique_ptr<Communicator> comm, std::unique_ptr<Communicator> comparison);

  int rank() const override { return comm_->rank(); }
  int world_size() const override { return comm_->world_size(); }
  at::Device device() const override { return comm_->device(); }
  bool is_asynchronous() const override { return comm_->is_asynchronous(); }

  std::shared_ptr<StreamMark> mark() override { return comm_->mark(); }
  void start_after(std::shared_ptr<StreamMark> mark) override {
    comm_->start_after(std::move(mark));
  }
  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  SharedMemory share_memory(int64_t num_bytes) override;
  void settle() override { comm_->settle(); }
  double set_timeout(double timeout_s) override {
    comparison_->set_timeout(timeout_s);
    return comm_->set_timeout(timeout_s);
  }
  std::shared_ptr<DeviceStager> make_stager() override { return comm_->make_stager(); }
  std::shared_ptr<DevicePacking> make_packing() override { return comm_->make_packing(); }
  std::shared_ptr<DeviceGraph> make_graph() override { return comm_->make_graph(); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return comm_->bytes_reduced(); }

 private:
  void require_equal_calls(const std::string& call);

  const std::unique_ptr<Communicator> comm_, comparison_;
  int64_t num_calls_ = 0;
};

// Agreements between ranks. Every function is collective and returns the same answer on every rank.
// Meant for the control communicator: small messages, outside of a step.

/// True if all N ranks passed the same value. Costs one all_reduce of two int64.
bool all_equal(Communicator& comm, int64_t value);

/// True if any rank passed true.
bool any_of(Communicator& comm, bool value);

int64_t min_of(Communicator& comm, int64_t value);
int64_t max_of(Communicator& comm, int64_t value);
int64_t sum_of(Communicator& comm, int64_t value);

/// Returns values on the host reduced over the ranks, on the host. May overwrite the values.
at::Tensor reduced_on_host(Communicator& comm, const at::Tensor& values_K, ReduceOp op);

/// Returns the indices of the words that differ between ranks. Costs one all_reduce of two int64
/// per word.
std::vector<size_t> differing_words(Communicator& comm, at::IntArrayRef words_K);

/// Returns every rank's text, by rank. Texts may differ in length.
std::vector<std::string> gather_texts(Communicator& comm, std::string_view text);

/// Returns rank 0's bytes on every rank.
std::string broadcast_text(Communicator& comm, std::string_view text);

/// Throws Error(kDisagree).everywhere() on every rank unless all passed the same text. The message
/// names `what`. For each group of ranks it quotes the text around the first difference: "binary
/// differs: rank 0: 0.1.0; ranks 1, 2: 0.2.0". Costs one all_reduce of 128 bytes while texts are
/// equal, however long they are.
void require_equal(Communicator& comm, std::string_view what, std::string_view text);

/// Turns one rank's fault into an error of all ranks. If any rank passes an error, every rank
/// throws the error of the lowest such rank, marked everywhere(). Code and area are kept; "rank 1:
/// " is put before the message if N > 1. Not for faults of the communicator itself, which can carry
/// no more messages.
void throw_if_any(Communicator& comm, const std::optional<Error>& fault);

/// Formats ranks for messages: "rank 3", "ranks 0, 2", "ranks 1-4, 7". Ascending, not empty.
std::string ranks_text(const std::vector<int>& ranks);

/// Formats the texts of all ranks, equal ones once: "ranks 0, 2: 1; rank 1: 0". shown: form of a
/// text in the message.
std::string texts_by_ranks(
    const std::vector<std::string>& texts,
    const std::function<std::string(const std::string&)>& shown = std::identity());

/// Runs a part that every rank does alone and that sends nothing. If it throws a std::exception on
/// some rank, all ranks throw the error of the lowest such rank.
template <typename Part>
auto on_all_ranks(Communicator& comm, const Part& part) {
  std::optional<Error> fault;
  std::optional<decltype(part())> result;
  try {
    result.emplace(part());
  } catch (const Error& error) {
    fault = error;
  } catch (const std::exception& error) {
    fault = Error(ExitCode::kBug, "bug", error.what());
  }
  throw_if_any(comm, fault);
  return std::move(*result);
}

/// Concatenates the tensors' elements into a new tensor [K] with these options (type, device), for
/// one message instead of many. At least one tensor.
at::Tensor joined(at::TensorList tensors, const at::TensorOptions& options);
/// Copies the parts of joined() back into the tensors, of any strides.
void take_apart(const at::Tensor& joined_K, at::TensorList tensors);

/// Returns a view of the tensor that ranks can add: a complex tensor as pairs of real numbers.
at::Tensor real_view(const at::Tensor& tensor);

/// Replaces each tensor by its mean over the N ranks, in place: the communicator's sum, divided by
/// N. Small neighbours of one dtype share a message of up to message_bytes, which changes no bit of
/// the result. Contiguous float tensors on comm.device(), of any shape. Shapes, dtypes and order
/// are equal on all ranks. Collective.
void mean_over_ranks(Communicator& comm, const std::vector<at::Tensor>& tensors,
                     int64_t message_bytes);

/// Consolidates sharded state: afterwards every rank has all elements, on a device too. Required
/// before sharded state is saved or sharded in another way. Texts are ignored.
///
/// Before the call each element is, on each rank, either its value or +0 (all bits 0). The ranks
/// that have its value have the same one. Method: the maximum of each byte over the ranks, so NaN
/// and -0 keep their bits. Collective: the same list on all ranks, tensors contiguous and on
/// comm.device(). One all_reduce per tensor, in place.
void consolidate_state(Communicator& comm, const StateList& parts);

}  // namespace lockstep::dist
