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

/// Queue between two stages: keeps items in order, holds at most `capacity` of them. Each stage may
/// have several threads. All functions are thread-safe.
template <typename Item>
class BoundedQueue {
 public:
  /// depth: always holds the number of items in the queue; it must outlive this object.
  BoundedQueue(int64_t capacity, std::atomic<int64_t>* depth)
      : capacity_(static_cast<size_t>(capacity)), depth_(*depth) {}

  /// Adds an item. Waits for room, and until the items of all smaller numbers (from 0) were added.
  /// Returns false if break_off() was called; the item is then dropped.
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

  /// Takes an item. Waits for one; returns nullopt if there will be none.
  std::optional<Item> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_broken_ || has_ended_ || !items_.empty(); });
    if (is_broken_ || items_.empty()) return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    tell();
    return item;
  }

  /// Ends the input. Items in the queue can still be taken.
  void finish() {
    const std::scoped_lock lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  /// Ends both sides at once and drops the items.
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
