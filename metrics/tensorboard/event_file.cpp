#include "metrics/tensorboard/event_file.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/tf_record.h"
#include "metrics/tensorboard/event_message.h"
#include "metrics/unix_time.h"

// The caller encodes points, or passes functions, into a queue; the file's thread writes them. The
// writer belongs to the thread too, so a hanging disk cannot leave it with a dangling reference.
namespace lockstep::metrics {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxPendingBytes = 1 << 20;
constexpr TaskQueue::Milliseconds kPatience{10'000};
// Fraction of flush_s without a point after which the thread checks.
constexpr double kIdleShare = 0.5;
constexpr double kLongestIdle_s = 3600;

TaskQueue::Milliseconds idle_time(double flush_s) {
  return TaskQueue::Milliseconds(
      static_cast<int64_t>(1000 * std::min(kIdleShare * flush_s, kLongestIdle_s)));
}

int64_t bytes_of(const std::string& text) { return static_cast<int64_t>(text.size()); }

}  // namespace

/// State of the writing thread. Only num_errors() is called by other threads.
class EventFile::Writer {
 public:
  explicit Writer(EventFileOptions options)
      : options_(std::move(options)), last_flush_(Clock::now()) {}

  void add(const std::string& event);
  void flush();
  void flush_if_due() {
    if (is_due()) flush();
  }
  void on_lost(std::string_view why);

  int64_t num_errors() const { return num_errors_.load(std::memory_order_relaxed); }

 private:
  bool is_due() const;
  void open();

  const EventFileOptions options_;
  std::unique_ptr<files::Writer> file_;
  std::string pending_;  // records not yet written
  Clock::time_point last_flush_;
  bool start_is_told_ = false;
  int64_t num_files_ = 0, num_failed_writes_ = 0;
  std::atomic<int64_t> num_errors_{0};
};

void EventFile::Writer::add(const std::string& event) {
  // Records are collected, so that a slow disk gets few large writes.
  append_tf_record(event, &pending_);
  flush_if_due();
}

bool EventFile::Writer::is_due() const {
  // The first point is written at once, so that viewers see that the run has begun.
  const bool is_first = num_files_ == 0 && num_failed_writes_ == 0;
  // 2^failures, at most 64: a failing disk is tried less and less often.
  const double patience = static_cast<double>(1 << std::min<int64_t>(num_failed_writes_, 6));
  const std::chrono::duration<double> waited = Clock::now() - last_flush_;
  return is_first || waited.count() >= options_.flush_s * patience ||
         pending_.size() > kMaxPendingBytes;
}

void EventFile::Writer::flush() {
  last_flush_ = Clock::now();
  if (pending_.empty()) return;
  try {
    if (!file_) open();
    file_->append(pending_);
    num_failed_writes_ = 0;
  } catch (const Error& fault) {
    // The next write opens a new file: readers stop at the torn record of this one.
    file_.reset();
    ++num_failed_writes_;
    on_lost(fault.what());
  }
  pending_.clear();
}

void EventFile::Writer::open() {
  files::make_folders(options_.folder);
  const double now_s = unix_time_s();
  const std::filesystem::path path =
      options_.folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                                    static_cast<int64_t>(now_s), options_.node, ::getpid(),
                                    num_files_++);
  file_ = std::make_unique<files::Writer>(path);
  std::string head;
  append_tf_record(version_event(now_s), &head);
  if (options_.is_session && !start_is_told_) {
    // Points up to the resumed step stay; later ones of earlier processes are dropped.
    const int64_t first =
        options_.resumed_step ? *options_.resumed_step * options_.axis_units_per_step + 1 : 0;
    append_tf_record(start_event(now_s, first), &head);
  }
  file_->append(head);
  start_is_told_ = true;
}

void EventFile::Writer::on_lost(std::string_view why) {
  // One warning per file; the series counts the rest.
  if (num_errors_++ > 0) return;
  log::warning("metrics", fmt::format("TensorBoard points are lost, training goes on: {}; "
                                      "further losses are only counted",
                                      why));
}

EventFile::EventFile(const EventFileOptions& options)
    : axis_units_per_step_(options.axis_units_per_step),
      writer_(std::make_shared<Writer>(options)),
      queue_({.thread_name = "event_file",
              .capacity_bytes = options.capacity_bytes,
              .patience = kPatience,
              .idle = [writer = writer_] { writer->flush_if_due(); },
              .idle_time = idle_time(options.flush_s)}) {}

EventFile::~EventFile() { flush(); }

void EventFile::add(int64_t step, std::span<const Scalar> scalars) {
  std::string event = scalars_event(unix_time_s(), on_axis(step), scalars);
  const int64_t num_bytes = bytes_of(event);
  push([event = std::move(event)] { return event; }, num_bytes);
}

void EventFile::add(int64_t step, std::string_view tag, SummaryValue value) {
  std::string event = value_event(unix_time_s(), on_axis(step), tag, value);
  const int64_t num_bytes = bytes_of(event);
  push([event = std::move(event)] { return event; }, num_bytes);
}

void EventFile::add(int64_t step, std::string_view tag, std::function<SummaryValue()> value,
                    int64_t num_bytes) {
  push([now_s = unix_time_s(), at = on_axis(step), tag = std::string(tag),
        value = std::move(value)] { return value_event(now_s, at, tag, value()); },
       num_bytes);
}

void EventFile::push(std::function<std::string()> event, int64_t num_bytes) {
  const auto write = [writer = writer_, event = std::move(event)] {
    try {
      writer->add(event());
    } catch (const std::exception& fault) {  // out of memory
      writer->on_lost(fault.what());
    }
  };
  if (!queue_.push(write, num_bytes))
    writer_->on_lost("they come faster than they are computed and written");
}

void EventFile::flush() {
  // In the queue's order: all earlier points are written first.
  (void)queue_.push([writer = writer_] { writer->flush(); }, 0);
}

int64_t EventFile::num_write_errors() const { return writer_->num_errors(); }

}  // namespace lockstep::metrics
