#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "coord/callbacks_handler.h"
#include "infer/data_feeder.h"
#include "infer/inferer_options.h"
#include "infer/predictor.h"

/// Inference in stages that run in parallel, and the queue between two stages.
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

struct InferenceResult {
  int64_t num_iterations = 0;  ///< iterations whose callbacks have run
  int64_t num_samples = 0;
  bool stopped = false;  ///< true if stopped on request, before the feed's end
  std::string engine;    ///< description of the engine that was used
};

/// Inference: runs a network on everything that a feeder returns, and passes the answers to
/// callbacks. Reading, network and callbacks run in threads of their own with queues between them,
/// or sequentially (InfererOptions::use_multiprocessing). Both ways give the callbacks the same
/// maps in the same order. A map has the keys of the feed and of the network's outputs. For a list
/// of feeds, its values are joined.
///
/// If the engine allows several threads, the network computes several iterations at once. They
/// share LibTorch's compute threads, so that they wait less for each other.
///
/// One thread calls the callbacks, from begin() to end(). The feeder is read one iteration ahead,
/// so that callbacks know the last one (IterationInfo::is_last_iteration).
class Inferer {
 public:
  /// References `feeder` and `handler`, which must outlive it. The handler's source keys must be
  /// those of the feed and keys_of() the network's outputs.
  Inferer(const LoadedNetwork& network, at::Device device, DataFeeder& feeder,
          coord::CallbacksHandler& handler, const InfererOptions& options = {});
  /// Uses this TensorrtConfig in place of that of the options.
  Inferer(const LoadedNetwork& network, at::Device device, DataFeeder& feeder,
          coord::CallbacksHandler& handler, const InfererOptions& options,
          const TensorrtConfig& tensorrt)
      : Inferer(network, device, feeder, handler, options.with(tensorrt)) {}

  /// Runs the inference, once. `stop_asked` is called before each iteration, possibly by another
  /// thread. On a stop the iterations already read are finished, the callbacks' end() is called,
  /// and `stopped` is set. An exception of feeder, network or callback ends all three. end() of the
  /// callbacks that began is called, so that they can store their data. Then the first exception is
  /// rethrown.
  InferenceResult run(const std::function<bool()>& stop_asked = {});

  const Predictor& predictor() const { return predictor_; }
  /// Iterations that wait for the network, and answers that wait for callbacks. Thread-safe.
  int64_t num_feeds_waiting() const { return feeds_waiting_.load(std::memory_order_relaxed); }
  int64_t num_answers_waiting() const { return answers_waiting_.load(std::memory_order_relaxed); }
  /// Iterations whose callbacks have run. Thread-safe.
  int64_t num_iterations() const { return num_iterations_.load(std::memory_order_relaxed); }

 private:
  struct Fed;
  struct Answered;
  class Feed;
  using FeedQueue = BoundedQueue<Fed>;
  using AnswerQueue = BoundedQueue<Answered>;

  int64_t num_at_once() const;
  void run_in_turn(Feed* feed);
  void run_staged(Feed* feed);
  void let_others_begin();
  void run_network(FeedQueue* feeds, AnswerQueue* answers);
  Answered answer(const Fed& fed);
  void pass_on(const Answered& answered);

  DataFeeder& feeder_;
  coord::CallbacksHandler& handler_;
  const InfererOptions options_;
  Predictor predictor_;
  const int64_t num_at_once_;               ///< iterations that the network computes at once
  std::atomic<bool> first_is_over_{false};  ///< set after the first iteration or an error
  std::atomic<int64_t> num_computing_{0};   ///< network threads that have not ended
  std::atomic<int64_t> feeds_waiting_{0}, answers_waiting_{0}, num_iterations_{0};
  int64_t num_samples_ = 0;
};

}  // namespace lockstep::infer
