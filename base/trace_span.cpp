#include "base/trace_span.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include <unistd.h>

namespace lockstep::trace {
namespace {

std::atomic<bool> is_on{false};
std::mutex mutex;
std::vector<SpanRecord> kept;  // under the mutex

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Span::Span(const char* name, int64_t detail) {
  if (!is_on.load(std::memory_order_relaxed)) return;
  record_ = {.name = name, .detail = detail, .begin_ns = now_ns()};
}

Span::~Span() {
  if (record_.begin_ns == 0) return;
  record_.end_ns = now_ns();
  record_.thread = gettid();
  const std::scoped_lock lock(mutex);
  if (is_on.load(std::memory_order_relaxed)) kept.push_back(record_);
}

void start() {
  const std::scoped_lock lock(mutex);
  kept.clear();
  is_on.store(true, std::memory_order_relaxed);
}

std::vector<SpanRecord> stop() {
  const std::scoped_lock lock(mutex);
  is_on.store(false, std::memory_order_relaxed);
  return std::exchange(kept, {});
}

}  // namespace lockstep::trace
