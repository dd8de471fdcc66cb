#include "base/trace/trace_span.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "base/process_state.h"

namespace lockstep::trace {
namespace {

enum Mode : unsigned { kTrace = 1, kRecent = 2 };

// Read without the mutex in every span, so that an idle trace costs one load.
std::atomic<unsigned> modes{0};
std::mutex mutex;
std::vector<SpanRecord> kept;           // guarded by the mutex, as the ring is
std::vector<const SpanRecord*> opened;  // unfinished spans of the running trace
thread_local const char* name_of_this_thread = "";

SpanRing& ring() {
  static SpanRing of_this_process;
  return of_this_process;
}

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t this_thread() {
  // A system call, so it is done once per thread.
  thread_local const int64_t number = gettid();
  return number;
}

}  // namespace

void name_thread(const char* name) {
  name_of_this_thread = name;
  static_cast<void>(::pthread_setname_np(::pthread_self(), name));
}

Span::Span(const char* name, int64_t detail) {
  const unsigned mode = modes.load(std::memory_order_relaxed);
  if (mode == 0) return;
  record_ = {.name = name,
             .detail = detail,
             .begin_ns = now_ns(),
             .thread = this_thread(),
             .thread_name = name_of_this_thread};
  // record_ is a member of the Span, so `opened` points to live objects only.
  const std::scoped_lock lock(mutex);
  if ((mode & kTrace) != 0) opened.push_back(&record_);
  if ((mode & kRecent) == 0) return;
  number_ = ring().begin(name, {.name = {},
                                .detail = detail,
                                .begin_ns = record_.begin_ns,
                                .end_ns = 0,
                                .thread = record_.thread});
}

Span::~Span() {
  // The span began while nothing was recorded.
  if (record_.begin_ns == 0) return;
  const int64_t end_ns = now_ns();
  const unsigned mode = modes.load(std::memory_order_relaxed);
  const std::scoped_lock lock(mutex);
  record_.end_ns = end_ns;
  std::erase(opened, &record_);
  if ((mode & kTrace) != 0) kept.push_back(record_);
  if (number_ >= 0) ring().end(number_, record_.end_ns);
}

void start() {
  const std::scoped_lock lock(mutex);
  kept.clear();
  opened.clear();
  modes.fetch_or(kTrace, std::memory_order_relaxed);
}

std::vector<SpanRecord> stop() {
  const std::scoped_lock lock(mutex);
  modes.fetch_and(~unsigned{kTrace}, std::memory_order_relaxed);
  const int64_t end_ns = now_ns();  // one time for all, so that no span ends before one inside it
  for (const SpanRecord* span : std::exchange(opened, {})) {
    kept.push_back(*span);
    kept.back().end_ns = end_ns;
  }
  return std::exchange(kept, {});
}

void keep_recent() { modes.fetch_or(kRecent, std::memory_order_relaxed); }

std::vector<RecentSpan> recent() {
  const std::scoped_lock lock(mutex);
  return ring().spans();
}

namespace {
const ProcessState recent_spans("recent spans", [] { forget_recent(); });
}  // namespace

void forget_recent() {
  const std::scoped_lock lock(mutex);
  ring().forget();
}

uint64_t recent_token() {
  keep_recent();
  const std::scoped_lock lock(mutex);
  return ring().token();
}

}  // namespace lockstep::trace
