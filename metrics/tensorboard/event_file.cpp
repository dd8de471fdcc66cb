#include "metrics/tensorboard/event_file.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/tf_record.h"
#include "metrics/tensorboard/event_message.h"
#include "metrics/unix_time.h"

namespace lockstep::metrics {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxPendingBytes = 1 << 20;

}  // namespace

EventFile::EventFile(EventFileOptions options)
    : options_(std::move(options)), last_flush_(Clock::now()) {}

EventFile::~EventFile() { flush(); }

void EventFile::add(int64_t step, std::span<const Scalar> scalars) {
  add_event(scalars_event(unix_time_s(), step, scalars));
}

void EventFile::add(int64_t step, std::string_view tag, const SummaryValue& value) {
  add_event(value_event(unix_time_s(), step, tag, value));
}

void EventFile::add_event(const std::string& event) {
  append_tf_record(event, &pending_);
  if (is_due()) flush();
}

bool EventFile::is_due() const {
  const bool is_first = num_files_ == 0 && num_write_errors_ == 0;
  const double patience = static_cast<double>(1 << std::min<int64_t>(num_write_errors_, 6));
  const std::chrono::duration<double> waited = Clock::now() - last_flush_;
  return is_first || waited.count() >= options_.flush_s * patience ||
         pending_.size() > kMaxPendingBytes;
}

void EventFile::flush() {
  last_flush_ = Clock::now();
  if (pending_.empty()) return;
  try {
    if (!writer_) open();
    writer_->append(pending_);
  } catch (const Error& fault) {
    on_fault(fault.what());
  }
  pending_.clear();
}

void EventFile::open() {
  files::make_folders(options_.folder);
  const double now_s = unix_time_s();
  path_ = options_.folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                                        static_cast<int64_t>(now_s), options_.node, ::getpid(),
                                        num_files_++);
  writer_ = std::make_unique<files::Writer>(path_);
  std::string head;
  append_tf_record(version_event(now_s), &head);
  if (!start_is_told_) {
    const int64_t first_step = options_.resumed_step ? *options_.resumed_step + 1 : 0;
    append_tf_record(start_event(now_s, first_step), &head);
  }
  writer_->append(head);
  start_is_told_ = true;
}

void EventFile::on_fault(std::string_view text) {
  writer_.reset();
  path_.clear();
  if (num_write_errors_++ > 0) return;
  log::warning("metrics", fmt::format("TensorBoard points are lost, training goes on: {}; "
                                      "further losses are only counted",
                                      text));
}

}  // namespace lockstep::metrics
