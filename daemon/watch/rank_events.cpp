#include "daemon/watch/rank_events.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/trace/trace_span.h"
#include "dist/agree.h"

// Each process keeps its newest spans in shared memory. Ranks of a host can therefore read the
// spans of a process that hangs or is stopped.
namespace lockstep::daemon {
namespace {

// Limits the length of log lines in large worlds.
constexpr int kMaxToldRanks = 16;

using Spans = std::vector<trace::RecentSpan>;

std::string json_of(const Spans& spans) {
  nlohmann::json events = nlohmann::json::array();
  for (const trace::RecentSpan& span : spans)
    events.push_back({{"name", span.text()},
                      {"detail", span.detail},
                      {"thread", span.thread},
                      {"begin_ns", span.begin_ns},
                      {"end_ns", span.end_ns}});
  return events.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Formats "rank 1 in 'data' for 12.0 s". A process' first thread has the process' number.
std::string standing_of(size_t rank, const Spans& spans, int64_t pid) {
  const trace::RecentSpan span = trace::open_span(spans, pid);
  if (span.text().empty()) return fmt::format("rank {} between two spans", rank);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double passed_s =
      std::chrono::duration<double>(now - std::chrono::nanoseconds(span.begin_ns)).count();
  return fmt::format("rank {} in '{}'{} for {:.1f} s", rank, span.text(),
                     span.detail >= 0 ? fmt::format(" {}", span.detail) : "", passed_s);
}

template <typename Number>
Number number_of(std::string_view text) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

RankEvents::RankEvents(dist::Communicator& control, std::filesystem::path logs)
    : logs_(std::move(logs)),
      begin_(std::filesystem::file_time_type::clock::now()),
      own_rank_(static_cast<size_t>(control.rank())) {
  // Each rank needs the others' process numbers and tokens to find their span rings later.
  for (const std::string& text :
       dist::gather_texts(control, fmt::format("{} {}", ::getpid(), trace::recent_token()))) {
    const size_t blank = text.find(' ');
    ranks_.push_back({.pid = number_of<int64_t>(std::string_view(text).substr(0, blank)),
                      .token = number_of<uint64_t>(std::string_view(text).substr(blank + 1))});
  }
}

std::filesystem::path RankEvents::path_of(size_t rank) const {
  return logs_ / fmt::format("lockstep-events-{}.json", rank);
}

bool RankEvents::is_written(size_t rank) const {
  std::error_code fault;
  const auto written = std::filesystem::last_write_time(path_of(rank), fault);
  return !fault && written > begin_;
}

/// Writes the file. Ranks that give up at the same moment write the same files; one success is
/// enough.
void RankEvents::write_unless_another_does(size_t rank, const std::string& text) const {
  try {
    files::write_atomically(path_of(rank), text);
  } catch (const Error&) {
    if (!is_written(rank)) throw;
  }
}

class RankEvents::Places {
 public:
  void add(size_t rank, const std::optional<Spans>& spans, int64_t pid) {
    if (++num_told_ > kMaxToldRanks) return;
    std::string& told = spans ? standing_ : unreadable_;
    told += told.empty() ? "" : ", ";
    told += spans ? standing_of(rank, *spans, pid) : std::to_string(rank);
  }
  void tell() const {
    if (!standing_.empty()) log::info("watchdog", "others stand: " + standing_);
    if (!unreadable_.empty())
      log::info("watchdog",
                fmt::format("events of rank(s) {} cannot be read from here: another host, or ended",
                            unreadable_));
  }

 private:
  std::string standing_, unreadable_;
  int num_told_ = 0;
};

void RankEvents::log_places() const {
  Places places;
  for (size_t rank = 0; rank < ranks_.size() && rank <= kMaxToldRanks; ++rank)
    if (rank != own_rank_)
      places.add(rank, trace::SpanRing::of_process(ranks_[rank].pid, ranks_[rank].token),
                 ranks_[rank].pid);
  places.tell();
}

void RankEvents::write() const {
  Places places;
  try {
    files::make_folders(logs_);  // a rank may hang before the run's folder is created
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const bool is_own = rank == own_rank_;
      if (!is_own && is_written(rank)) continue;
      const std::optional<Spans> spans =
          is_own ? trace::recent()
                 : trace::SpanRing::of_process(ranks_[rank].pid, ranks_[rank].token);
      if (spans) write_unless_another_does(rank, json_of(*spans));
      if (!is_own) places.add(rank, spans, ranks_[rank].pid);
    }
  } catch (const Error& fault) {
    log::warning("watchdog", fmt::format("the newest events cannot be written: {}", fault.what()));
  }
  places.tell();
}

}  // namespace lockstep::daemon
