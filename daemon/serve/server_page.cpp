#include "daemon/serve/server_page.h"

#include <chrono>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/serve/serve_options.h"
#include "metrics/server/server_metrics.h"

// The page must answer even if the queue's disk hangs: its numbers are kept in memory, and the
// listing runs in the background.
namespace lockstep::daemon {
namespace {

/// Longest wait for a listing of the queue; after that the page shows the previous numbers.
constexpr std::chrono::milliseconds kListing{200};

}  // namespace

ServerPage::ServerPage(const JobQueue& queue, int num_ranks)
    : num_ranks_(num_ranks), waiting_("queue", [queue] {
        const auto count = [&](const char* place) {
          return static_cast<int64_t>(queue.numbers_in(place).size());
        };
        return Waiting{.queued = count("queued"), .set_aside = count("set_aside")};
      }) {
  for (const int64_t id : queue.numbers_in("jobs")) {
    try {
      if (const std::optional<JobResult> result = queue.result(id))
        ++num_ended_.at(static_cast<size_t>(result->state));
    } catch (const Error& fault) {  // a damaged file of a job that ended earlier
      log::warning("serve", fault.what());
    }
  }
}

void ServerPage::listen(const std::string& listen, const std::string& token_file) {
  const std::optional<metrics::ListenAddress> address = address_of(listen);
  if (!address) return;
  server_.emplace(
      metrics::HttpOptions{.listen = *address,
                           .access = {.web_config = "", .token_file = token_file},
                           .fall_back_to_any_port = true},
      [this](std::string_view target) { return answer(target); }, nullptr);
  log::info("serve", fmt::format("{}/metrics", server_->origin()));
}

void ServerPage::begin(const Job& job) {
  const std::lock_guard lock(mutex_);
  ++num_starts_;
  running_ = job;
}

void ServerPage::end(JobState state) {
  const std::lock_guard lock(mutex_);
  if (state != JobState::kQueued) ++num_ended_.at(static_cast<size_t>(state));
  running_.reset();
}

void ServerPage::set_held(bool is_held) {
  const std::lock_guard lock(mutex_);
  is_held_ = is_held;
}

metrics::HttpResponse ServerPage::answer(std::string_view target) const {
  const std::string_view route = target.substr(0, target.find('?'));
  if (route == "/livez") return {.body = "ok\n", .route = "/livez"};
  if (route == "/metrics")
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
            .body = page(),
            .route = "/metrics"};
  return {.status = 404, .body = "/metrics or /livez\n"};
}

std::string ServerPage::page() const {
  metrics::ServerSample sample{.num_ranks = num_ranks_};
  const auto count = [&](JobState state, int64_t number) {
    sample.num_jobs.emplace_back(job_state_name(state), number);
  };
  // Before the lock: the listing may wait for the disk.
  const Waiting waiting = waiting_.get(kListing).value.value_or(Waiting{});
  const std::lock_guard lock(mutex_);
  count(JobState::kQueued, waiting.queued);
  count(JobState::kRunning, running_ ? 1 : 0);
  for (const JobState ended :
       {JobState::kDone, JobState::kStopped, JobState::kCancelled, JobState::kFailed})
    count(ended, num_ended_.at(static_cast<size_t>(ended)));
  count(JobState::kSetAside, waiting.set_aside);
  sample.num_starts = num_starts_;
  sample.is_held = is_held_;
  if (running_) sample.running = {std::to_string(running_->id), running_->spec.run_name};
  return metrics::server_page(sample);
}

}  // namespace lockstep::daemon
