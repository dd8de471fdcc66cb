#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {
class DeviceGraph;
class DevicePacking;
class DeviceStager;
}  // namespace lockstep

namespace lockstep::dist {

enum class ReduceOp { kSum, kMin, kMax };

/// A collective under way. Destroying it without wait() is a bug.
class Work {
 public:
  virtual ~Work() = default;

  /// Orders later kernels of the current stream after the collective; on a CPU backend, blocks
  /// until it is done. Throws as the communicator does.
  virtual void wait() = 0;

  /// Returns once the result is there, on a GPU too; a lost or hanging peer ends this as it ends
  /// wait() on CPUs. It holds for all collectives of the communicator begun before.
  virtual void wait_on_host() { wait(); }
};

/// A point in the work that a thread has put on its stream (Communicator::mark()).
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  /// Returns once that work is done; throws as Work::wait_on_host().
  virtual void wait_on_host() = 0;
};

/// Memory that all ranks of a communicator see, zeros at first, or why there is none.
struct SharedMemory {
  std::shared_ptr<std::byte> begin;  ///< from a page on; given back with its last copy here
  std::string why_not;               ///< where null: "its ranks ..."; may differ between ranks
};

/// The collectives that training needs, seen from one rank.
///
/// Symbols: N = world_size(), r = rank() in [0, N), [K] = contiguous, K items.
/// dtypes: float32, float64, bfloat16, float16, int64, uint8. 16-bit floats are summed in float32
/// and rounded once.
///
/// What every backend promises (tests/dist/communicator_contract.h):
///   order    all N ranks make the same calls, in the same order, with equal K and dtype; a backend
///            need not detect a breach.
///   result   bit-identical on all N ranks; on CPUs a sum is taken in rank order, as a fixed tree
///            (dist/reduce_in_rank_order.h), so its bits depend neither on K nor on how values are
///            grouped into calls, nor on where ranks run.
///   errors   Error(kUnavailable): a peer is gone; kWatchdog: one did not come in time; kDisagree:
///   one
///            makes another call. Afterwards only destruction is allowed.
///   threads  one caller at a time.
///
/// Source: semantics follow MPI 3.1 section 5 (collective communication).
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Where tensors must live: the CPU for MPI, this rank's GPU for NCCL.
  virtual at::Device device() const = 0;
  /// Whether a call returns before its collective is done and Work::wait() only orders the current
  /// stream behind it; then several collectives may be under way.
  virtual bool is_asynchronous() const { return false; }

  /// Up to here the calling thread's current stream has work now; null where calls are not
  /// asynchronous. Any thread, also beside a call of another one.
  virtual std::shared_ptr<StreamMark> mark() { return nullptr; }
  /// The next collective begins behind this mark of here, instead of behind all that its caller's
  /// stream has by then: what it reads was complete at the mark. Null: as ever.
  virtual void begin_behind(std::shared_ptr<StreamMark> mark) { static_cast<void>(mark); }

  /// Replaces values_K [K] by its reduction over the N ranks. K = 0 is allowed.
  [[nodiscard]] virtual std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) = 0;

  /// Rank r gets piece r, [K], of the sum over ranks of values_NK [N * K]. out_K may be piece r of
  /// values_NK itself; the other pieces keep their values.
  [[nodiscard]] virtual std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                             at::Tensor values_NK) = 0;

  /// Rank r's values_K [K] becomes piece r of out_NK [N * K] on every rank. values_K may be that
  /// piece itself.
  [[nodiscard]] virtual std::unique_ptr<Work> all_gather(at::Tensor out_NK,
                                                         at::Tensor values_K) = 0;

  /// Copies rank root's values_K [K] over every other rank's. Blocks (CPU) or is ordered on the
  /// stream (GPU).
  virtual void broadcast(at::Tensor values_K, int root) = 0;

  /// Returns once every rank has called it; the host waits.
  virtual void barrier() = 0;

  /// Returns once all collectives begun here are done; the host waits. Throws if one of them
  /// failed. Whoever reads on the host what lies behind a collective on the device (a copy, an
  /// item()) calls this first (dist/copy_to_host.h): the read itself would wait for a peer that
  /// hangs until the communicator is aborted, and then give garbage.
  virtual void settle() {}

  /// From now on calls wait so long for a peer before they throw. Returns what it was before. Where
  /// waits have no limit nothing changes. By the thread that makes the calls, between two of them.
  virtual double set_timeout(double timeout_s) { return timeout_s; }

  /// What copies tensors of device() to the host beside the step (base/device/device_stager.h),
  /// and fails with this communicator; null where the host reads them without waiting. No messages.
  virtual std::shared_ptr<DeviceStager> make_stager() { return nullptr; }
  /// What packs tensors of device() there (base/device/device_packing.h); null on CPUs. No
  /// messages.
  virtual std::shared_ptr<DevicePacking> make_packing() { return nullptr; }
  /// What records work of device() and does it again (base/device/device_graph.h), but for
  /// collectives; null on CPUs. No messages.
  virtual std::shared_ptr<DeviceGraph> make_graph() { return nullptr; }

  /// Memory that all N ranks map, where they are on one host and have the space; null on all ranks
  /// else. No write into it can fail later. Who reads what another rank wrote makes a collective
  /// call in between, which is all the order there is. Collective, blocks; equal sizes.
  virtual SharedMemory share_memory(int64_t num_bytes) {
    static_cast<void>(num_bytes);
    return {nullptr, "the ranks exchange messages"};
  }

  /// A new communicator of the ranks that pass the same color (>= 0), ranked by (key, rank here).
  /// Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Payload bytes that this rank has handed to all_reduce and reduce_scatter since the start.
  virtual int64_t bytes_reduced() const = 0;
};

}  // namespace lockstep::dist
