#include "metrics/rank_pages.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "metrics/exposition.h"
#include "metrics/http/page_fetch.h"

// Pages of several ranks, and the file of targets. Prometheus watches this file (file_sd). The file
// disappears with the run, so that a finished run is no longer scraped.
namespace lockstep::metrics {

std::string targets_json(const std::vector<Target>& targets) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Target& target : targets)
    list.push_back({{"targets", {target.address}}, {"labels", target.labels}});
  return json_text(list, 2) + "\n";
}

TargetsFile::TargetsFile(std::filesystem::path path, const std::vector<Target>& targets)
    : path_(std::move(path)) {
  files::write_atomically(path_, targets_json(targets));
}

TargetsFile::~TargetsFile() {
  try {
    // A destructor must not throw; a stale file is replaced by the next run.
    files::remove_file(path_);
  } catch (const Error& fault) {
    log::warning("metrics", fault.what());
  }
}

// Merges pages as text, line by line, without parsing the values.

namespace {

constexpr std::string_view kHelp = "# HELP ", kType = "# TYPE ";

/// Removes the part before `mark`, and the mark, from the text and returns the part. Without the
/// mark, removes everything.
std::string_view take_until(char mark, std::string_view* text) {
  const size_t at = text->find(mark);
  const std::string_view part = text->substr(0, at);
  text->remove_prefix(at == text->npos ? text->size() : at + 1);
  return part;
}

/// Returns the end of the first label in rank="1",node="n1", after the closing quote.
size_t end_of_label(std::string_view labels) {
  size_t at = labels.find('"') + 1;
  // A backslash escapes the next character, also a quote.
  while (at < labels.size() && labels[at] != '"') at += labels[at] == '\\' ? 2 : 1;
  return at + 1;
}

/// True if `labels`, the text between a series' braces, contains a label of that name.
bool has_label(std::string_view labels, std::string_view name) {
  while (labels.find('"') != labels.npos) {
    if (labels.starts_with(name) && labels.substr(name.size()).starts_with("=\"")) return true;
    labels.remove_prefix(std::min(end_of_label(labels), labels.size()));
    if (labels.starts_with(',')) labels.remove_prefix(1);
  }
  return false;
}

/// Returns those of `labels` that the series does not have.
std::string labels_to_add(std::string_view labels, std::string_view own) {
  std::string text;
  while (!labels.empty()) {
    const size_t end = end_of_label(labels);
    const std::string_view label = labels.substr(0, end);
    labels.remove_prefix(std::min(end + 1, labels.size()));
    if (has_label(own, label.substr(0, label.find('=')))) continue;
    if (!text.empty()) text += ',';
    text += label;
  }
  return text;
}

/// Adds labels to the lines "name{own} 1" and "name 1".
void add_series(std::string_view line, const std::string& labels, std::string* text) {
  const size_t name_end = line.find_first_of("{ ");
  if (name_end == line.npos) return;  // not a line of that format
  std::string_view rest = line.substr(name_end);
  const bool has_labels = rest.front() == '{';
  if (has_labels) rest.remove_prefix(1);
  const std::string more = labels_to_add(labels, has_labels ? rest : std::string_view());
  text->append(line.substr(0, name_end));
  if (has_labels || !more.empty()) *text += '{';
  text->append(more);
  if (has_labels && !more.empty() && !rest.starts_with('}')) *text += ',';
  if (!has_labels && !more.empty()) *text += '}';
  text->append(rest).append("\n");
}

/// Adds the families of a page to the texts by family, which are ordered by name.
void add_page(const RankPage& page, std::map<std::string, std::string>* text_of) {
  std::string_view lines = page.text, family;
  bool is_new = false;
  while (!lines.empty()) {
    const std::string_view line = take_until('\n', &lines);
    if (line.starts_with(kHelp) || line.starts_with(kType)) {
      // HELP and TYPE have the same length, so one offset fits both.
      std::string_view words = line.substr(kHelp.size());
      const std::string_view name = take_until(' ', &words);
      // Only the first page that has a family provides its help and type.
      if (name != family) is_new = !text_of->contains(std::string(name));
      family = name;
      std::string& text = (*text_of)[std::string(family)];
      if (is_new) text.append(line).append("\n");
    } else if (!line.empty() && line.front() != '#') {
      add_series(line, page.labels, &(*text_of)[std::string(family)]);
    }
  }
}

using WorkGuard = boost::asio::executor_work_guard<boost::asio::io_context::executor_type>;

constexpr size_t kMostAtOnce = 64;  ///< open connections to other ranks
constexpr std::string_view kRankQuery = "?rank=";

std::string labels_of(const RankSource& source) {
  return fmt::format("rank=\"{}\",node=\"{}\"", source.rank, source.node);
}

/// Returns R of /live.json?rank=R.
std::optional<int> rank_of(std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  if (path != kLiveDataRoute || !target.substr(path.size()).starts_with(kRankQuery))
    return std::nullopt;
  const std::string_view number = target.substr(path.size() + kRankQuery.size());
  int rank = 0;
  const auto [end, fault] = std::from_chars(number.begin(), number.end(), rank);
  return fault == std::errc() && end == number.end() ? std::optional(rank) : std::nullopt;
}

}  // namespace

std::string merged_page(const std::vector<RankPage>& pages) {
  std::map<std::string, std::string> text_of;
  for (const RankPage& page : pages) add_page(page, &text_of);
  std::string all;
  for (const auto& [name, text] : text_of) all += text;
  return all;
}

int rank_that_shows(const RankSource& source, const std::vector<RankSource>& ranks) {
  if (source.is_scraped) return source.rank;
  const RankSource* found = nullptr;
  for (const RankSource& one : ranks) {
    if (!one.is_scraped) continue;
    // Prefer the same host: its pages then need no network.
    const bool is_nearer = one.node == source.node && one.rank < source.rank;
    if (found == nullptr || is_nearer || (found->node != source.node && one.node == source.node))
      found = &one;
  }
  return found->rank;
}

class RankPages::Impl {
 public:
  Impl(HttpHandler own, std::function<void(int)> note_missing)
      : own_(std::move(own)), note_missing_(std::move(note_missing)) {
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::jthread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "lockstep-pages");
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Stops the thread. Pending replies are destroyed with io_: no thread waits for them any more.
  void stop() {
    if (!io_) return;
    io_->stop();
    thread_.join();
    waiting_.clear();
    stays_.reset();
    io_.reset();
  }

  void gather_from(RankSource own, std::vector<RankSource> others, std::string token) {
    process_ = own.process;  // visible to a thread that sees knows_others_
    // The other members belong to the thread, so they are set there.
    boost::asio::post(*io_, [this, own = std::move(own), others = std::move(others),
                             token = std::move(token)]() mutable {
      self_ = std::move(own);
      others_ = std::move(others);
      token_ = std::move(token);
    });
    knows_others_ = true;
  }

  bool ask(std::string_view target, const Reply& reply) {
    // Before gather_from() this process answers only for itself.
    if (!knows_others_) return false;
    if (const std::optional<int> rank = rank_of(target)) {
      boost::asio::post(*io_, [this, rank = *rank, reply] { forward(rank, reply); });
      return true;
    }
    if (target.substr(0, target.find('?')) != kMetricsRoute || !means_process(target, process_))
      return false;
    boost::asio::post(*io_, [this, reply] { gather(reply); });
    return true;
  }

 private:
  /// Runs the thread. An exception in one answer is logged; the next answers are still made.
  void run() {
    while (!io_->stopped()) {
      try {
        io_->run();
      } catch (const std::exception& fault) {
        log::error("metrics", fmt::format("pages of other ranks: {}", fault.what()));
      }
    }
  }

  void forward(int rank, const Reply& reply) {
    HttpResponse answer = own_(kLiveDataRoute);
    if (rank == self_.rank) return reply(std::move(answer));
    const auto found = std::find_if(others_.begin(), others_.end(),
                                    [=](const RankSource& other) { return other.rank == rank; });
    if (found == others_.end()) return reply({404, "text/plain; charset=utf-8", "no such rank\n"});
    fetch_page(*io_, {found->address, std::string(kLiveDataRoute), token_},
               [reply, answer = std::move(answer)](std::optional<std::string> text) mutable {
                 if (!text) answer.status = 504;
                 answer.body = text ? std::move(*text) : "{}";
                 reply(std::move(answer));
               });
  }

  /// Adds a reply to the current answer. Requests during a collection share its result, so many
  /// readers cost the ranks no more than one.
  void gather(const Reply& reply) {
    waiting_.push_back(reply);
    if (waiting_.size() > 1) return;
    // A rank that does not answer keeps nullopt and is counted as missing.
    texts_.assign(others_.size(), std::nullopt);
    next_ = 0;
    num_open_ = 0;
    ask_next();
  }

  void ask_next() {
    while (next_ < others_.size() && num_open_ < kMostAtOnce) {
      ++num_open_;
      const size_t which = next_++;
      fetch_page(*io_, {others_[which].address, std::string(kMetricsRoute), token_},
                 [this, which](std::optional<std::string> text) {
                   texts_[which] = std::move(text);
                   --num_open_;
                   // Posted, so that many fast answers do not nest.
                   boost::asio::post(*io_, [this] { ask_next(); });
                 });
    }
    if (num_open_ == 0 && !waiting_.empty()) answer_all();
  }

  /// Sends the merged page. This process' own page is generated last: its counter then includes
  /// this answer, and the gauge of missing ranks describes it.
  void answer_all() {
    note_missing_(static_cast<int>(std::count(texts_.begin(), texts_.end(), std::nullopt)));
    const std::vector<Reply> replies = std::exchange(waiting_, {});
    HttpResponse answer = own_(kMetricsRoute);
    std::vector<RankPage> pages{{labels_of(self_), std::move(answer.body)}};
    for (size_t i = 0; i < others_.size(); ++i)
      if (texts_[i]) pages.push_back({labels_of(others_[i]), std::move(*texts_[i])});
    answer.body = merged_page(pages);
    for (const Reply& reply : replies) reply(answer);
  }

  const HttpHandler own_;
  const std::function<void(int)> note_missing_;
  // The other members are used by the thread only.
  RankSource self_;
  std::vector<RankSource> others_;
  std::string token_;
  std::vector<Reply> waiting_;  ///< replies that get the current answer
  std::vector<std::optional<std::string>> texts_;
  size_t next_ = 0, num_open_ = 0;

  std::string process_;
  std::atomic<bool> knows_others_ = false;
  std::unique_ptr<boost::asio::io_context> io_ = std::make_unique<boost::asio::io_context>(1);
  std::optional<WorkGuard> stays_{io_->get_executor()};
  std::jthread thread_;  // declared last: joined first
};

RankPages::RankPages(HttpHandler own, std::function<void(int)> note_missing)
    : impl_(std::make_unique<Impl>(std::move(own), std::move(note_missing))) {}

RankPages::~RankPages() = default;

void RankPages::gather_from(RankSource own, std::vector<RankSource> others, std::string token) {
  impl_->gather_from(std::move(own), std::move(others), std::move(token));
}

bool RankPages::ask(std::string_view target, const Reply& reply) {
  return impl_->ask(target, reply);
}

void RankPages::stop() { impl_->stop(); }

}  // namespace lockstep::metrics
