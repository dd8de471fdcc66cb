#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads/signals_blocked.h"
#include "base/trace/trace_span.h"
#include "data/sampler.h"

namespace lockstep::data {

/// Threads that make an item of each of a sampler's global batches, in its order and ahead of who
/// takes them. next() and position() have one caller at a time.
template <typename Item>
class ReadAhead {
 public:
  using Make = std::function<Item(const GlobalBatch&)>;

  /// Begins where `sampler` is, with a copy of it. `make` runs on several threads at once.
  ReadAhead(const Sampler& sampler, Make make, int64_t num_threads, int64_t max_items)
      : sampler_(sampler), make_(std::move(make)), position_(sampler.position()) {
    max_items_ = static_cast<size_t>(std::max(num_threads, max_items));
    const SignalsBlocked blocked;  // a signal is the main thread's
    for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ReadAhead() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next item in order; throws what `make` threw for it.
  Item next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !slots_.empty() && slots_.front().done; });
    Slot slot = std::move(slots_.front());
    slots_.pop_front();
    lock.unlock();
    room_.notify_one();
    position_ = slot.after;
    if (slot.fault) std::rethrow_exception(slot.fault);
    return std::move(slot.item);
  }

  /// Items that next() need not wait for: those done without a gap.
  int64_t num_ready() {
    const std::scoped_lock lock(mutex_);
    const auto first_missing =
        std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.done; });
    return std::distance(slots_.begin(), first_missing);
  }

  /// Of the sampler behind the item that next() gave last.
  SamplerPosition position() const { return position_; }

 private:
  struct Slot {
    bool done = false;
    Item item;
    std::exception_ptr fault;
    SamplerPosition after;
  };

  void work() {
    trace::name_thread("data");
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [this] { return ends_ || slots_.size() < max_items_; });
      if (ends_) return;
      const GlobalBatch batch = sampler_.next();
      Slot& slot = slots_.emplace_back();  // a deque: others' ends do not move it
      slot.after = sampler_.position();
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
      ready_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable room_, ready_;
  Sampler sampler_;         // ahead of the loader's
  std::deque<Slot> slots_;  // in the sampler's order
  size_t max_items_ = 0;
  bool ends_ = false;
  const Make make_;
  SamplerPosition position_;
  std::vector<std::thread> threads_;  // last: they use all the others
};

}  // namespace lockstep::data
