#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace lockstep::infer {

/// Items from one stage to the next, in their order, at most `capacity` on the way. A stage may be
/// several threads.
template <typename Item>
class BoundedQueue {
 public:
  /// `depth` always tells how many are on the way; it outlives this.
  BoundedQueue(int64_t capacity, std::atomic<int64_t>* depth)
      : capacity_(static_cast<size_t>(capacity)), depth_(*depth) {}

  /// Waits for room, and until the items of all smaller numbers were pushed; they count from 0.
  /// False: the queue was broken off, and the item is dropped.
  bool push(int64_t number, Item item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, number] {
      return is_broken_ || (number == num_pushed_ && items_.size() < capacity_);
    });
    if (is_broken_) return false;
    items_.push_back(std::move(item));
    ++num_pushed_;
    tell();
    return true;
  }

  /// Waits for an item. Nothing: there is none any more.
  std::optional<Item> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_broken_ || has_ended_ || !items_.empty(); });
    if (is_broken_ || items_.empty()) return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    tell();
    return item;
  }

  /// Nothing more is pushed; what is on the way can still be taken.
  void finish() {
    const std::scoped_lock lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  /// Both sides end, and what is on the way is lost.
  void break_off() {
    const std::scoped_lock lock(mutex_);
    is_broken_ = true;
    items_.clear();
    tell();
  }

 private:
  void tell() {
    depth_.store(static_cast<int64_t>(items_.size()), std::memory_order_relaxed);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  const size_t capacity_;
  int64_t num_pushed_ = 0;
  bool has_ended_ = false, is_broken_ = false;
  std::atomic<int64_t>& depth_;
};

}  // namespace lockstep::infer
