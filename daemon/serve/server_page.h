#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string>

#include "base/threads/background_value.h"
#include "daemon/serve/job_queue.h"
#include "metrics/http/http_server.h"

namespace lockstep::daemon {

/// Monitoring page of a server: /metrics and /livez, during jobs and between them. Each job also
/// has its own pages (metrics.listen of its run file). Any thread.
class ServerPage {
 public:
  /// Counts the jobs of the queue that have ended.
  ServerPage(const JobQueue& queue, int num_ranks);

  /// Starts the page; "off": none. Throws Error as metrics::HttpServer does.
  void listen(const std::string& listen, const std::string& token_file);
  /// Returns "http://127.0.0.1:9463"; empty if no page is served.
  std::string origin() const { return server_ ? server_->origin() : ""; }

  void begin(const Job& job);
  void end(JobState state);
  /// Sets whether jobs wait for a repair of the host.
  void set_held(bool is_held);

 private:
  metrics::HttpResponse answer(std::string_view target) const;
  std::string page() const;

  const int num_ranks_;
  mutable std::mutex mutex_;
  std::array<int64_t, kNumJobStates> num_ended_{};  // guarded by mutex_, as the next three
  int64_t num_starts_ = 0;
  bool is_held_ = false;
  std::optional<Job> running_;
  struct Waiting {
    int64_t queued = 0, set_aside = 0;
  };
  /// Listed by a separate thread: a hanging disk must not block the page.
  mutable BackgroundValue<Waiting> waiting_;
  std::optional<metrics::HttpServer> server_;  // declared last: its thread reads the other members
};

}  // namespace lockstep::daemon
