#include "base/trace_span.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include <unistd.h>

namespace lockstep::trace {
namespace {

enum Mode : unsigned { kTrace = 1, kRecent = 2 };

std::atomic<unsigned> modes{0};
std::mutex mutex;
std::vector<SpanRecord> kept;             // under the mutex, as what follows
std::array<SpanRecord, kNumRecent> ring;  // span n lies at n % kNumRecent
int64_t num_begun = 0;                    // spans ever in the ring
int64_t first_told = 0;                   // of them

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t this_thread() {
  thread_local const int64_t number = gettid();
  return number;
}

SpanRecord& at(int64_t number) { return ring[static_cast<size_t>(number % kNumRecent)]; }

}  // namespace

Span::Span(const char* name, int64_t detail) {
  const unsigned mode = modes.load(std::memory_order_relaxed);
  if (mode == 0) return;
  record_ = {.name = name, .detail = detail, .begin_ns = now_ns(), .thread = this_thread()};
  if ((mode & kRecent) == 0) return;
  const std::scoped_lock lock(mutex);
  number_ = num_begun++;
  at(number_) = record_;
}

Span::~Span() {
  if (record_.begin_ns == 0) return;
  record_.end_ns = now_ns();
  const unsigned mode = modes.load(std::memory_order_relaxed);
  const std::scoped_lock lock(mutex);
  if ((mode & kTrace) != 0) kept.push_back(record_);
  if (number_ >= 0 && num_begun - number_ <= kNumRecent) at(number_) = record_;
}

void start() {
  const std::scoped_lock lock(mutex);
  kept.clear();
  modes.fetch_or(kTrace, std::memory_order_relaxed);
}

std::vector<SpanRecord> stop() {
  const std::scoped_lock lock(mutex);
  modes.fetch_and(~unsigned{kTrace}, std::memory_order_relaxed);
  return std::exchange(kept, {});
}

void keep_recent() { modes.fetch_or(kRecent, std::memory_order_relaxed); }

std::vector<SpanRecord> recent() {
  const std::scoped_lock lock(mutex);
  std::vector<SpanRecord> spans;
  for (int64_t n = std::max(first_told, num_begun - kNumRecent); n < num_begun; ++n)
    spans.push_back(at(n));
  return spans;
}

void forget_recent() {
  const std::scoped_lock lock(mutex);
  first_told = num_begun;
}

SpanRecord open_span(int64_t thread) {
  const std::vector<SpanRecord> spans = recent();
  for (auto span = spans.rbegin(); span != spans.rend(); ++span)
    if (span->thread == thread && span->end_ns == 0) return *span;
  return {};
}

}  // namespace lockstep::trace
