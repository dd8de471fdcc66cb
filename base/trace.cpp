// Spans of this process: the ring of recent ones, and traces.
#include "base/trace.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process.h"

namespace lockstep::trace {

// SpanRing: the ring is a memfd. Other processes find it among the open files in /proc/PID/fd and
// read it as a file.

struct SpanRing::Memory {
  uint64_t token = 0;
  int64_t num_begun = 0;                      ///< number of spans ever begun
  int64_t first_told = 0;                     ///< first of them that is not hidden
  std::array<RecentSpan, kNumRecent> ring{};  ///< span n is at n % kNumRecent
  static constexpr const char* kName = "lockstep-spans";

  RecentSpan& at(int64_t number) { return ring[static_cast<size_t>(number % kNumRecent)]; }
  std::vector<RecentSpan> spans() const {
    const int64_t end = std::max<int64_t>(0, num_begun);
    std::vector<RecentSpan> found;
    // The copy may be from a running process, so no field is trusted.
    for (int64_t n = std::max({int64_t{0}, first_told, end - kNumRecent}); n < end; ++n) {
      found.push_back(ring[static_cast<size_t>(n % kNumRecent)]);
      found.back().name.back() = '\0';
    }
    return found;
  }
};

namespace {

/// Allocates memory that other processes of this user find in /proc/PID/fd; null if there is none.
void* shown_memory(const char* name, size_t num_bytes) {
  // memfd: memory with a descriptor but without a name in a file system.
  const int file = ::memfd_create(name, MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(num_bytes)) == 0)
    memory = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) return memory;  // the file stays open, since others find it by that
  (void)::close(file);
  return nullptr;
}

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

const ProcessState recent_spans("recent spans", [] { forget_recent(); });

}  // namespace

SpanRing::SpanRing() {
  void* const shown = shown_memory(Memory::kName, sizeof(Memory));
  memory_ = shown != nullptr ? new (shown) Memory : std::make_unique<Memory>().release();
  std::random_device random;
  // | 1: a token is never 0, the value of empty memory.
  memory_->token = (uint64_t{random()} << 32 | random()) | 1;
}

int64_t SpanRing::begin(const char* name, const RecentSpan& span) {
  RecentSpan& place = memory_->at(memory_->num_begun);
  place = span;
  const std::string_view text = std::string_view(name).substr(0, place.name.size() - 1);
  std::copy(text.begin(), text.end(), place.name.begin());
  return memory_->num_begun++;
}

void SpanRing::end(int64_t number, int64_t end_ns) {
  // The place may belong to a newer span by now.
  if (memory_->num_begun - number <= kNumRecent) memory_->at(number).end_ns = end_ns;
}

std::vector<RecentSpan> SpanRing::spans() const { return memory_->spans(); }

void SpanRing::forget() { memory_->first_told = memory_->num_begun; }

uint64_t SpanRing::token() const { return memory_->token; }

std::optional<std::vector<RecentSpan>> SpanRing::of_process(int64_t pid, uint64_t token) {
  namespace fs = std::filesystem;
  std::error_code fault;
  const fs::path folder = fs::path("/proc") / std::to_string(pid) / "fd";
  for (fs::directory_iterator file(folder, fault), end; !fault && file != end;
       file.increment(fault)) {
    std::error_code closed;
    // A process may have several such files, so the token decides.
    if (fs::read_symlink(file->path(), closed).string().find(Memory::kName) == std::string::npos)
      continue;
    const auto memory = std::make_unique<Memory>();
    std::ifstream bytes(file->path(), std::ios::binary);
    bytes.read(reinterpret_cast<char*>(memory.get()), sizeof(Memory));
    if (bytes && memory->token == token) return memory->spans();
  }
  return std::nullopt;
}

RecentSpan open_span(const std::vector<RecentSpan>& spans, int64_t thread) {
  for (auto span = spans.rbegin(); span != spans.rend(); ++span)
    if (span->thread == thread && span->end_ns == 0) return *span;
  return {};
}

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
