#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads/signals_blocked.h"
#include "base/trace/trace_span.h"
#include "data/sampler.h"

namespace lockstep::data {

/// Threads that make an item of each of a sampler's global batches, in its order and ahead of who
/// takes them; with max_items 0 not ahead, but while somebody waits for it. The calls have one
/// caller at a time.
template <typename Item>
class ReadAhead {
 public:
  using Make = std::function<Item(const GlobalBatch&)>;

  /// Begins where `sampler` is, with a copy of it. `make` runs on several threads at once.
  /// may_leave_threads: it owns what it uses.
  ReadAhead(const Sampler& sampler, Make make, int64_t num_threads, int64_t max_items,
            bool may_leave_threads)
      : may_leave_threads_(may_leave_threads),
        shared_(std::make_shared<Shared>(sampler, std::move(make),
                                         max_items == 0 ? 0 : std::max(num_threads, max_items))),
        position_(sampler.position()) {
    const SignalsBlocked blocked;  // a signal is the main thread's
    for (int64_t i = 0; i < num_threads; ++i)
      threads_.emplace_back([shared = shared_] { shared->work(); });
  }

  /// Waits for the items under way; where threads may be left, not after next_unless() was left,
  /// nor for more than a second: they end behind it, whenever that is.
  ~ReadAhead() {
    shared_->end();
    const bool leaves = may_leave_threads_ && (is_left_ || !shared_->is_idle_within(kEnd));
    for (std::thread& thread : threads_) leaves ? thread.detach() : thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next item in order; throws what `make` threw for it. Nothing where `leaves`, asked now and
  /// then while the item is not there, says so; the next call waits for the same one.
  std::optional<Item> next_unless(const std::function<bool()>& leaves) {
    std::optional<Slot> slot = shared_->take(leaves);
    is_left_ = !slot;
    if (!slot) return std::nullopt;
    position_ = slot->after;
    if (slot->fault) std::rethrow_exception(slot->fault);
    return std::move(slot->item);
  }

  /// Items that next_unless() need not wait for: those done without a gap.
  int64_t num_ready() { return shared_->num_ready(); }

  /// Of the sampler behind the item that next_unless() gave last.
  SamplerPosition position() const { return position_; }

 private:
  static constexpr std::chrono::milliseconds kLook{20}, kEnd{1000};

  struct Slot {
    bool done = false;
    Item item;
    std::exception_ptr fault;
    SamplerPosition after;
  };

  /// What the threads need, which may outlive the rest.
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
        Slot& slot = slots_.emplace_back();  // a deque: others' ends do not move it
        slot.after = sampler_.position();
        ++num_making_;
        lock.unlock();
        Item item;
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
    Sampler sampler_;         // ahead of the loader's
    std::deque<Slot> slots_;  // in the sampler's order
    const size_t max_items_;
    size_t num_wanted_ = 0;  // 1: somebody waits for the first of them
    bool ends_ = false;
    int num_making_ = 0;  // threads in make_
    const Make make_;
  };

  const bool may_leave_threads_;
  const std::shared_ptr<Shared> shared_;
  SamplerPosition position_;
  bool is_left_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
