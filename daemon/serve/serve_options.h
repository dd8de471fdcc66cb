#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/serve/job_queue.h"
#include "metrics/http/listen_address.h"

namespace lockstep::daemon {

/// The command line of `lockstepd serve`.
struct ServeOptions {
  std::string queue;                      ///< folder of the jobs; empty: not asked for
  std::string listen = "127.0.0.1:9463";  ///< of rank 0's page; "off": none
  std::string token_file;                 ///< of that page
  int64_t max_queued = JobQueue::kMaxQueued;
  int max_tries = 3;         ///< of a job, in a row without a new save
  bool until_empty = false;  ///< ends where no job waits
};

/// Where its page is served; nothing: nowhere. Throws Error(kUsage) if `listen` says neither.
std::optional<metrics::ListenAddress> address_of(const std::string& listen);

}  // namespace lockstep::daemon
