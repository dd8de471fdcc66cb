#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "coord/callbacks_handler.h"
#include "infer/bounded_queue.h"
#include "infer/feed/data_feeder.h"
#include "infer/inferer_options.h"
#include "infer/predictor.h"

namespace lockstep::infer {

struct InferenceResult {
  int64_t num_iterations = 0;  ///< whose callbacks have run
  int64_t num_samples = 0;
  bool stopped = false;  ///< on request, before the feed's end
  std::string engine;    ///< what was done with the network
};

/// Asks a network everything that a feeder has, and passes what it answers to callbacks: reading,
/// network and callbacks in threads of their own with queues between them, or in turn
/// (InfererOptions::use_multiprocessing). Both ways give the callbacks the same maps in the same
/// order: the keys of the feed and of the network's outputs, joined where a feed was a list.
///
/// Where the engine takes several threads, LibTorch's compute threads are shared among iterations
/// that the network computes at the same time: they wait for each other less.
///
/// Callbacks are called by one thread, from begin() to end(). The feeder is asked one iteration
/// ahead, so that callbacks know the last one (IterationInfo::is_last_iteration).
class Inferer {
 public:
  /// `feeder` and `handler` outlive it; the handler's source keys are those of the feed and
  /// keys_of() the network's outputs.
  Inferer(const LoadedNetwork& network, at::Device device, DataFeeder& feeder,
          coord::CallbacksHandler& handler, const InfererOptions& options = {});
  /// The same with this TensorrtConfig in the place of the options' own.
  Inferer(const LoadedNetwork& network, at::Device device, DataFeeder& feeder,
          coord::CallbacksHandler& handler, const InfererOptions& options,
          const TensorrtConfig& tensorrt)
      : Inferer(network, device, feeder, handler, options.with(tensorrt)) {}

  /// Once. `stop_asked` is asked before each iteration, maybe by another thread: what was read
  /// before is answered, the callbacks' end() called, and the result says so. What feeder, network
  /// or a callback throws ends all three; end() of the callbacks that began is called, so that they
  /// store what they have, and the first error is thrown here.
  InferenceResult run(const std::function<bool()>& stop_asked = {});

  const Predictor& predictor() const { return predictor_; }
  /// Iterations that wait for the network, and answers that wait for the callbacks. Any thread.
  int64_t num_feeds_waiting() const { return feeds_waiting_.load(std::memory_order_relaxed); }
  int64_t num_answers_waiting() const { return answers_waiting_.load(std::memory_order_relaxed); }
  /// Whose callbacks have run. Any thread.
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
  const int64_t num_at_once_;               ///< iterations in the network
  std::atomic<bool> first_is_over_{false};  ///< the first iteration, with an answer or a fault
  std::atomic<int64_t> num_computing_{0};   ///< threads of the network that have not ended
  std::atomic<int64_t> feeds_waiting_{0}, answers_waiting_{0}, num_iterations_{0};
  int64_t num_samples_ = 0;
};

}  // namespace lockstep::infer
