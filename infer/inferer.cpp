#include "infer/inferer.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "base/process/signals_blocked.h"
#include "infer/bounded_queue.h"
#include "infer/feed/join.h"

namespace lockstep::infer {
namespace {

using Clock = std::chrono::steady_clock;

/// What the first of several threads threw.
class FirstFault {
 public:
  void take(std::exception_ptr fault) {
    const std::scoped_lock lock(mutex_);
    if (!fault_) fault_ = std::move(fault);
  }
  void rethrow() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  std::mutex mutex_;
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
  double seconds = 0;  ///< of the network
  int64_t num_samples = 0;
  coord::DataMap data;
};

/// What the feeder gives, read one iteration ahead.
class Inferer::Feed {
 public:
  Feed(DataFeeder* feeder, const std::function<bool()>& stop_asked)
      : feeder_(*feeder), stop_asked_(stop_asked) {}

  std::optional<Fed> next() {
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
      predictor_(network, options_.engine, device) {}

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

void Inferer::run_in_turn(Feed* feed) {
  while (const auto fed = feed->next()) pass_on(answer(*fed));
}

/// The network stays in this thread, which has the compute threads.
void Inferer::run_staged(Feed* feed) {
  FirstFault fault;
  BoundedQueue<Fed> feeds(options_.queue_size, &feeds_waiting_);
  BoundedQueue<Answered> answers(options_.queue_size, &answers_waiting_);
  const auto ends_all = [&](const auto& stage) {
    try {
      stage();
    } catch (...) {
      fault.take(std::current_exception());
      feeds.break_off();
      answers.break_off();
    }
  };
  std::thread reads, calls_back;
  {
    const SignalsBlocked blocked;  // a signal is the main thread's
    reads = std::thread(ends_all, [&] {
      for (auto fed = feed->next(); fed && feeds.push(std::move(*fed)); fed = feed->next())
        continue;
      feeds.finish();
    });
    calls_back = std::thread(ends_all, [&] {
      while (const auto answered = answers.pop()) pass_on(*answered);
    });
  }
  ends_all([&] {
    for (auto fed = feeds.pop(); fed && answers.push(answer(*fed)); fed = feeds.pop()) continue;
    answers.finish();
  });
  reads.join();
  calls_back.join();
  fault.rethrow();
}

InferenceResult Inferer::run(const std::function<bool()>& stop_asked) {
  handler_.context().mode = coord::Mode::kInfer;
  handler_.context().number_iterations_per_epoch = feeder_.num_iterations();
  Feed feed(&feeder_, stop_asked);
  try {
    handler_.begin();
    if (options_.use_multiprocessing)
      run_staged(&feed);
    else
      run_in_turn(&feed);
  } catch (...) {
    handler_.end_after_fault();
    throw;
  }
  handler_.end();
  return {.num_iterations = num_iterations_.load(),
          .num_samples = num_samples_,
          .stopped = feed.was_stopped(),
          .engine = predictor_.engine()};
}

}  // namespace lockstep::infer
