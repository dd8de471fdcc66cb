#include "infer/inferer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>

#include "base/threads.h"

namespace lockstep::infer {
// Staged inference: one thread reads, num_at_once_ threads compute (this one among them), one
// thread runs the callbacks. Two bounded queues connect them. A queue passes items on in the order
// of their numbers. So several computing threads do not change the order of callbacks.
//
// Errors: the first exception of any stage is kept, and both queues are broken off, which ends the
// other stages. After all threads have ended, run_staged() rethrows it.
namespace {

using Clock = std::chrono::steady_clock;

/// First exception of several threads.
class FirstFault {
 public:
  void take(std::exception_ptr fault) {
    const std::scoped_lock lock(mutex_);
    if (!fault_) fault_ = std::move(fault);
  }
  bool is_there() const {
    const std::scoped_lock lock(mutex_);
    return fault_ != nullptr;
  }
  void rethrow() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr fault_;
};

}  // namespace

struct Inferer::Fed {
  int64_t number = 0;
  bool is_last = false;
  std::vector<coord::DataMap> list;
};

struct Inferer::Answered {
  int64_t number = 0;
  bool is_last = false;
  double seconds = 0;  ///< time in the network
  int64_t num_samples = 0;
  coord::DataMap data;
};

/// Reader of the feeder, one iteration ahead. Used by one thread.
class Inferer::Feed {
 public:
  Feed(DataFeeder* feeder, const std::function<bool()>& stop_asked)
      : feeder_(*feeder), stop_asked_(stop_asked) {}

  std::optional<Fed> next() {
    // A stop is checked before each read, so that a stopped run reads nothing more.
    if (number_ == 0 && !stops()) ahead_ = feeder_.next_list();
    if (!ahead_ || stops()) return std::nullopt;
    Fed fed{.number = number_++, .list = std::move(*ahead_)};
    ahead_ = feeder_.next_list();
    fed.is_last = !ahead_;
    return fed;
  }
  bool was_stopped() const { return was_stopped_; }

 private:
  bool stops() {
    was_stopped_ = was_stopped_ || (stop_asked_ && stop_asked_());
    return was_stopped_;
  }

  DataFeeder& feeder_;
  const std::function<bool()>& stop_asked_;
  std::optional<std::vector<coord::DataMap>> ahead_;
  int64_t number_ = 0;
  bool was_stopped_ = false;
};

Inferer::Inferer(const LoadedNetwork& network, at::Device device, DataFeeder& feeder,
                 coord::CallbacksHandler& handler, const InfererOptions& options)
    : feeder_(feeder),
      handler_(handler),
      options_(options),
      predictor_(network, options_.engine, device),
      num_at_once_(num_at_once()) {}

Inferer::Answered Inferer::answer(const Fed& fed) {
  const Clock::time_point start = Clock::now();
  std::vector<coord::DataMap> answers;
  for (const coord::DataMap& feed : fed.list) answers.push_back(predictor_.predict(feed));
  const std::chrono::duration<double> taken = Clock::now() - start;
  Answered answered{.number = fed.number,
                    .is_last = fed.is_last,
                    .seconds = taken.count(),
                    .data = joined(fed.list)};
  const coord::DataMap outputs = joined(answers);
  for (const auto& [key, value] : outputs.values()) answered.data.put(key, value);
  const coord::DataValue* first = outputs.find(predictor_.nodes().outputs.front().name);
  // Each output has one row per sample, which Predictor::predict() has checked.
  answered.num_samples = std::get<at::Tensor>(*first).size(0);
  return answered;
}

void Inferer::pass_on(const Answered& answered) {
  coord::CallbackContext& context = handler_.context();
  context.summary_step = answered.number;
  context.iteration_info = {.iteration_number = answered.number,
                            .is_last_iteration = answered.is_last};
  handler_.on_iteration_start();
  context.iteration_info.execution_time = answered.seconds;
  handler_.on_iteration_end(answered.data);
  num_samples_ += answered.num_samples;
  num_iterations_.fetch_add(1, std::memory_order_relaxed);
}

/// Iterations to compute at once: one per thread for few threads, otherwise two that share them.
int64_t Inferer::num_at_once() const {
  constexpr int64_t kFew = 4;
  const int64_t num_threads = at::get_num_threads();
  const int64_t most = num_threads <= kFew ? num_threads : 2;
  const bool is_short = feeder_.num_iterations().value_or(most) < most;
  return predictor_.takes_many_threads() && !is_short ? most : 1;
}

void Inferer::run_in_turn(Feed* feed) {
  try {
    handler_.begin();
    while (const auto fed = feed->next()) pass_on(answer(*fed));
  } catch (...) {
    handler_.end_after_fault();
    throw;
  }
  // Outside the try block: an exception of end() must not call end() again.
  handler_.end(/*is_broken_off=*/feed->was_stopped());
}

void Inferer::let_others_begin() {
  first_is_over_ = true;
  first_is_over_.notify_all();
}

/// Loop of a computing thread. The first iteration finishes before others begin, because the engine
/// compiles for its shape.
void Inferer::run_network(FeedQueue* feeds, AnswerQueue* answers) {
  bool is_wanted = true;
  while (is_wanted) {
    const auto fed = feeds->pop();
    if (fed && fed->number > 0) first_is_over_.wait(false);
    is_wanted = fed && answers->push(fed->number, answer(*fed));
    // Also after a failed push: other threads may wait for the first iteration.
    let_others_begin();
  }
  // The last computing thread closes the queue of answers.
  if (num_computing_.fetch_sub(1) == 1) answers->finish();
}

/// Runs the stages in threads. The network uses this thread and further ones. Callbacks use one
/// thread from begin to end, since resources they open may belong to the thread.
void Inferer::run_staged(Feed* feed) {
  FirstFault fault;
  FeedQueue feeds(options_.queue_size, &feeds_waiting_);
  AnswerQueue answers(options_.queue_size, &answers_waiting_);
  const auto ends_all = [&](const auto& stage) {
    try {
      stage();
    } catch (...) {
      fault.take(std::current_exception());
      // Releases everything that other threads may wait for: the first iteration and both queues.
      let_others_begin();
      feeds.break_off();
      answers.break_off();
    }
  };
  const auto computes = [&] { ends_all([&] { run_network(&feeds, &answers); }); };
  num_computing_ = num_at_once_;
  std::vector<std::thread> threads;
  {
    const SignalsBlocked blocked;  // signals go to the main thread
    threads.emplace_back(ends_all, [&] {
      for (auto fed = feed->next(); fed; fed = feed->next()) {
        const int64_t number = fed->number;
        if (!feeds.push(number, std::move(*fed))) break;
      }
      feeds.finish();
    });
    threads.emplace_back([&] {
      ends_all([&] {
        handler_.begin();
        while (const auto answered = answers.pop()) pass_on(*answered);
      });
      // The fault of any stage: a stage stores it before it breaks the queues off.
      if (fault.is_there())
        handler_.end_after_fault();
      else
        ends_all([&] { handler_.end(/*is_broken_off=*/feed->was_stopped()); });
    });
    for (int64_t i = 1; i < num_at_once_; ++i)
      threads.emplace_back([&computes, num_threads = at::get_num_threads()] {
        // New threads start with LibTorch's default, not with the share of this scope.
        at::set_num_threads(num_threads);
        computes();
      });
  }
  computes();
  for (std::thread& thread : threads) thread.join();
  fault.rethrow();
}

InferenceResult Inferer::run(const std::function<bool()>& stop_asked) {
  handler_.context().mode = coord::Mode::kInfer;
  handler_.context().number_iterations_per_epoch = feeder_.num_iterations();
  Feed feed(&feeder_, stop_asked);
  // Meanwhile this thread uses its share of LibTorch's compute threads.
  const int num_threads = at::get_num_threads();
  const auto restore = c10::make_scope_exit([=] { at::set_num_threads(num_threads); });
  at::set_num_threads(static_cast<int>(std::max<int64_t>(1, num_threads / num_at_once_)));
  if (options_.use_multiprocessing)
    run_staged(&feed);
  else
    run_in_turn(&feed);
  return {.num_iterations = num_iterations_.load(),
          .num_samples = num_samples_,
          .stopped = feed.was_stopped(),
          .engine = predictor_.engine()};
}

}  // namespace lockstep::infer
