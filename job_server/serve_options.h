#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "job_server/job_queue.h"
#include "metrics/http/listen_address.h"

/// Options of a server of jobs, and their definition on command lines.
namespace lockstep::job_server {

/// The command line of `lockstepd serve`.
struct ServeOptions {
  std::string queue;                      ///< folder of the jobs; empty: serve nothing
  std::string listen = "127.0.0.1:9463";  ///< address of rank 0's page; "off": none
  std::string token_file;                 ///< of that page
  int64_t max_queued = JobQueue::kMaxQueued;
  int max_tries = 3;         ///< consecutive starts of a job without a new checkpoint
  bool until_empty = false;  ///< end when no job waits
};

/// Returns the address of the page; nullopt if there is no page. Throws Error(kUsage) if `listen`
/// is not valid.
std::optional<metrics::ListenAddress> address_of(const std::string& listen);

}  // namespace lockstep::job_server

namespace CLI {
class App;
}

namespace lockstep::job_server {

/// Adds --queue, which LOCKSTEP_QUEUE may set too.
void add_queue_option(CLI::App* sub, std::string* queue, const char* help);

/// Adds the options of `lockstepd serve` and `lockstep serve`: --queue, --listen, ...
void add_server_options(CLI::App* sub, ServeOptions* options);

}  // namespace lockstep::job_server
