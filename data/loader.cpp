#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/tensors/tensor_memory.h"
#include "base/threads.h"
#include "base/trace.h"

namespace lockstep::data {

/// Threads that make an item for each of a sampler's global batches, in order and ahead of the
/// consumer. With max_items 0 nothing is made ahead, only while the consumer waits. One caller at a
/// time.
class ReadAhead {
 public:
  using Make = std::function<Batch(const GlobalBatch&)>;

  /// Starts at the position of `sampler`, with a copy of it. `make` runs on several threads at
  /// once. may_leave_threads: `make` owns everything that it uses, so a thread may outlive this.
  ReadAhead(const Sampler& sampler, Make make, int64_t num_threads, int64_t max_items,
            bool may_leave_threads)
      : may_leave_threads_(may_leave_threads),
        shared_(std::make_shared<Shared>(sampler, std::move(make),
                                         max_items == 0 ? 0 : std::max(num_threads, max_items))),
        position_(sampler.position()) {
    const SignalsBlocked blocked;  // signals are handled by the main thread
    for (int64_t i = 0; i < num_threads; ++i)
      threads_.emplace_back([shared = shared_] { shared->work(); });
  }

  /// Waits for the items being made. If threads may be left, it waits at most a second. After a
  /// next_unless() that returned nullopt it does not wait. Left threads end later by themselves.
  ~ReadAhead() {
    shared_->end();
    const bool leaves = may_leave_threads_ && (is_left_ || !shared_->is_idle_within(kEnd));
    for (std::thread& thread : threads_) leaves ? thread.detach() : thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Returns the next item in order, or throws what `make` threw for it. Returns nullopt if
  /// `leaves`, called now and then while the item is not ready, returns true. The next call then
  /// waits for the same item.
  std::optional<Batch> next_unless(const std::function<bool()>& leaves) {
    std::optional<Slot> slot = shared_->take(leaves);
    is_left_ = !slot;
    if (!slot) return std::nullopt;
    position_ = slot->after;
    if (slot->fault) std::rethrow_exception(slot->fault);
    return std::move(slot->item);
  }

  /// Returns the number of items that are ready without a gap.
  int64_t num_ready() { return shared_->num_ready(); }

  /// Returns the sampler's position after the item that next_unless() returned last.
  SamplerPosition position() const { return position_; }

 private:
  static constexpr std::chrono::milliseconds kLook{20}, kEnd{1000};

  struct Slot {
    bool done = false;
    Batch item;
    std::exception_ptr fault;
    SamplerPosition after;
  };

  /// State of the threads, which may outlive the ReadAhead.
  class Shared {
   public:
    Shared(const Sampler& sampler, Make make, int64_t max_items)
        : sampler_(sampler), max_items_(static_cast<size_t>(max_items)), make_(std::move(make)) {}

    void end() {
      {
        const std::scoped_lock lock(mutex_);
        ends_ = true;
      }
      room_.notify_all();
    }

    bool is_idle_within(std::chrono::milliseconds limit) {
      std::unique_lock lock(mutex_);
      return ready_.wait_for(lock, limit, [this] { return num_making_ == 0; });
    }

    std::optional<Slot> take(const std::function<bool()>& leaves) {
      std::unique_lock lock(mutex_);
      const auto is_ready = [this] { return !slots_.empty() && slots_.front().done; };
      // max_items_ 0: room for one item appears only while the caller waits for it.
      if (std::exchange(num_wanted_, 1) == 0 && max_items_ == 0) room_.notify_one();
      if (!leaves) ready_.wait(lock, is_ready);
      while (!ready_.wait_for(lock, kLook, is_ready))
        if (leaves()) return std::nullopt;
      Slot slot = std::move(slots_.front());
      slots_.pop_front();
      num_wanted_ = 0;
      lock.unlock();
      if (max_items_ > 0) room_.notify_one();
      return slot;
    }

    int64_t num_ready() {
      const std::scoped_lock lock(mutex_);
      const auto first_missing =
          std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.done; });
      return std::distance(slots_.begin(), first_missing);
    }

    void work() {
      trace::name_thread("data");
      std::unique_lock lock(mutex_);
      while (true) {
        room_.wait(lock,
                   [this] { return ends_ || slots_.size() < std::max(max_items_, num_wanted_); });
        if (ends_) return;
        const GlobalBatch batch = sampler_.next();
        Slot& slot = slots_.emplace_back();  // a deque: changes at its ends do not move it
        slot.after = sampler_.position();
        ++num_making_;
        lock.unlock();
        Batch item;
        std::exception_ptr fault;
        try {
          item = make_(batch);
        } catch (...) {
          fault = std::current_exception();
        }
        lock.lock();
        slot.item = std::move(item);
        slot.fault = std::move(fault);
        slot.done = true;
        --num_making_;
        ready_.notify_one();
      }
    }

   private:
    std::mutex mutex_;
    std::condition_variable room_, ready_;
    Sampler sampler_;         // ahead of the loader's sampler
    std::deque<Slot> slots_;  // in the sampler's order
    const size_t max_items_;
    size_t num_wanted_ = 0;  // 1: the caller waits for the first slot
    bool ends_ = false;
    int num_making_ = 0;  // threads inside make_
    const Make make_;
  };

  const bool may_leave_threads_;
  const std::shared_ptr<Shared> shared_;
  SamplerPosition position_;
  bool is_left_ = false;
  std::vector<std::thread> threads_;
};

// Loader: the sampler that read-ahead threads use is a copy. next() moves the real one only when a
// batch is delivered.

namespace {

Batch load(const Dataset& dataset, const GlobalBatch& global, int rank, int world_size,
           at::Device device) {
  const auto num_samples = static_cast<int64_t>(global.indices.size());
  const Shard mine = shard_of(num_samples, rank, world_size);
  const std::span<const int64_t> indices =
      std::span(global.indices).subspan(mine.begin, mine.size());
  // Each rank reads only its own share, so no rank waits for the reads of another.
  Samples samples = mapped(dataset.get(indices, global.epoch),
                           [&](const at::Tensor& values) { return pinned_for(device, values); });
  return {std::move(samples), num_samples, mine.begin, rank};
}

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, Sampler& sampler, int rank, int world_size,
               LoaderOptions options)
    : dataset_(std::move(dataset)),
      sampler_(sampler),
      rank_(rank),
      world_size_(world_size),
      options_(options),
      // False if the caller owns the data set: it may be gone before a left thread ends.
      owns_data_(dataset_.use_count() > 0) {}

Loader::Loader(const Dataset& dataset, Sampler& sampler, int rank, int world_size,
               LoaderOptions options)
    : Loader(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &dataset), sampler, rank,
             world_size, options) {}

Loader::~Loader() = default;

std::optional<Batch> Loader::next_unless(const std::function<bool()>& leaves) {
  if (options_.num_threads == 0)
    return load(*dataset_, sampler_.next(), rank_, world_size_, options_.device);
  const SamplerPosition position = sampler_.position();
  if (read_ahead_ == nullptr || read_ahead_->position() != position) {
    read_ahead_.reset();  // the sampler was moved (a restore): what was read ahead is useless
    const auto load_one = [dataset = dataset_, rank = rank_, world_size = world_size_,
                           device = options_.device](const GlobalBatch& global) {
      return load(*dataset, global, rank, world_size, device);
    };
    read_ahead_ = std::make_unique<ReadAhead>(sampler_, load_one, options_.num_threads,
                                              options_.prefetch_batches,
                                              /*may_leave_threads=*/owns_data_);
  }
  std::optional<Batch> batch = read_ahead_->next_unless(leaves);
  if (batch) sampler_.set_position(read_ahead_->position());
  return batch;
}

Batch Loader::without_samples() {
  const auto num_samples = static_cast<int64_t>(sampler_.next().indices.size());
  return {no_samples(dataset_->spec()), num_samples,
          shard_of(num_samples, rank_, world_size_).begin, rank_};
}

std::optional<int64_t> Loader::num_ready() const {
  const bool reads_ahead = read_ahead_ != nullptr && options_.prefetch_batches > 0;
  return reads_ahead ? std::optional(read_ahead_->num_ready()) : std::nullopt;
}

}  // namespace lockstep::data
