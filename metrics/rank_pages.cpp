#include "metrics/rank_pages.h"

#include <algorithm>
#include <array>
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
#include "metrics/page_formats.h"

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

namespace {

using WorkGuard = boost::asio::executor_work_guard<boost::asio::io_context::executor_type>;

constexpr size_t kMostAtOnce = 64;  ///< open connections of one answer to other ranks
constexpr std::string_view kRankQuery = "?rank=";

std::vector<prometheus::ClientMetric::Label> labels_of(const RankSource& source) {
  return {{"rank", std::to_string(source.rank)}, {"node", source.node}};
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
    for (Answer& answer : answers_) answer.waiting.clear();
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

  bool ask(const HttpRequest& request, const Reply& reply) {
    const std::string_view target = request.target;
    // Before gather_from() this process answers only for itself.
    if (!knows_others_) return false;
    if (const std::optional<int> rank = rank_of(target)) {
      boost::asio::post(*io_, [this, rank = *rank, reply] { forward(rank, reply); });
      return true;
    }
    if (target.substr(0, target.find('?')) != kMetricsRoute || !means_process(target, process_))
      return false;
    boost::asio::post(*io_, [this, reply, format = wanted_format(request.accept)] {
      gather(&answers_[static_cast<size_t>(format)], reply);
    });
    return true;
  }

 private:
  /// Answer in one format that waits for the ranks' pages.
  struct Answer {
    PageFormat format;
    std::vector<Reply> waiting = {};  ///< replies that get it
    std::vector<std::optional<std::string>> pages = {};
    size_t next = 0, num_open = 0;
  };

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
    fetch_page(*io_,
               {.address = found->address, .target = std::string(kLiveDataRoute), .token = token_},
               [reply, answer = std::move(answer)](std::optional<std::string> text) mutable {
                 if (!text) answer.status = 504;
                 answer.body = text ? std::move(*text) : "{}";
                 reply(std::move(answer));
               });
  }

  /// Adds a reply to an answer. Requests during a collection share its result, so many readers cost
  /// the ranks no more than one.
  void gather(Answer* answer, const Reply& reply) {
    answer->waiting.push_back(reply);
    if (answer->waiting.size() > 1) return;
    // A rank that does not answer keeps nullopt and is counted as missing.
    answer->pages.assign(others_.size(), std::nullopt);
    answer->next = 0;
    answer->num_open = 0;
    ask_next(answer);
  }

  void ask_next(Answer* answer) {
    while (answer->next < others_.size() && answer->num_open < kMostAtOnce) {
      ++answer->num_open;
      const size_t which = answer->next++;
      fetch_page(*io_,
                 {.address = others_[which].address,
                  .target = std::string(kMetricsRoute),
                  .token = token_,
                  .accept = content_type(answer->format)},
                 [this, answer, which](std::optional<std::string> page) {
                   answer->pages[which] = std::move(page);
                   --answer->num_open;
                   // Posted, so that many fast answers do not nest.
                   boost::asio::post(*io_, [this, answer] { ask_next(answer); });
                 });
    }
    if (answer->num_open == 0 && !answer->waiting.empty()) answer_all(answer);
  }

  /// Sends the merged page. This process' own page is generated last: its counter then includes
  /// this answer, and the gauge of missing ranks describes it.
  void answer_all(Answer* answer) {
    auto& found = answer->pages;
    note_missing_(static_cast<int>(std::count(found.begin(), found.end(), std::nullopt)));
    const std::vector<Reply> replies = std::exchange(answer->waiting, {});
    HttpResponse response = own_({kMetricsRoute, content_type(answer->format)});
    std::vector<RankPage> pages{{labels_of(self_), std::move(response.body)}};
    for (size_t i = 0; i < others_.size(); ++i)
      if (found[i]) pages.push_back({labels_of(others_[i]), std::move(*found[i])});
    response.body = merged_page(answer->format, pages);
    for (const Reply& reply : replies) reply(response);
  }

  const HttpHandler own_;
  const std::function<void(int)> note_missing_;
  // The other members are used by the thread only.
  RankSource self_;
  std::vector<RankSource> others_;
  std::string token_;
  std::array<Answer, kNumPageFormats> answers_{
      Answer{PageFormat::kText}, Answer{PageFormat::kOpenMetrics}, Answer{PageFormat::kProtobuf}};

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

bool RankPages::ask(const HttpRequest& request, const Reply& reply) {
  return impl_->ask(request, reply);
}

void RankPages::stop() { impl_->stop(); }

}  // namespace lockstep::metrics
