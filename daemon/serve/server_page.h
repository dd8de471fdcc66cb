#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string>

#include "base/threads/background_value.h"
#include "daemon/serve/job_queue.h"
#include "metrics/http/http_server.h"

namespace lockstep::daemon {

/// What a server shows of itself: /metrics and /livez, while jobs run and between them. Each job
/// has pages of its own besides (metrics.listen of its run file). Calls from any thread.
class ServerPage {
 public:
  /// Counts what has ended in the queue.
  ServerPage(const JobQueue& queue, int num_ranks);

  /// Throws Error as metrics::HttpServer does. "off": no pages.
  void listen(const std::string& listen, const std::string& token_file);
  /// "http://127.0.0.1:9463"; empty where no page is served.
  std::string origin() const { return server_ ? server_->origin() : ""; }

  void begin(const Job& job);
  void end(JobState state);
  /// Whether jobs wait until the host is mended.
  void set_held(bool is_held);

 private:
  metrics::HttpResponse answer(std::string_view target) const;
  std::string page() const;

  const int num_ranks_;
  mutable std::mutex mutex_;
  std::array<int64_t, kNumJobStates> num_ended_{};  // guarded by mutex_, as what follows
  int64_t num_starts_ = 0;
  bool is_held_ = false;
  std::optional<Job> running_;
  struct Waiting {
    int64_t queued = 0, set_aside = 0;
  };
  /// Listed on a thread of its own: a disk that hangs must not take the page with it.
  mutable BackgroundValue<Waiting> waiting_;
  std::optional<metrics::HttpServer> server_;  // last: its thread reads the others
};

}  // namespace lockstep::daemon
