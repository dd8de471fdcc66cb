#include "job_server/serve_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "daemon/config/number_range.h"

namespace lockstep::job_server {

std::optional<metrics::ListenAddress> address_of(const std::string& listen) {
  // As metrics.listen of a run file.
  if (listen == "off") return std::nullopt;
  const std::optional<metrics::ListenAddress> address = metrics::parse_listen_address(listen);
  if (!address)
    throw Error(
        ExitCode::kUsage, "serve",
        fmt::format("--listen {}: it takes HOST:PORT, such as 127.0.0.1:9463, or off", listen));
  return address;
}

void add_queue_option(CLI::App* sub, std::string* queue, const char* help) {
  sub->add_option("--queue", *queue, help)->envname("LOCKSTEP_QUEUE")->required();
}

void add_server_options(CLI::App* sub, ServeOptions* options) {
  add_queue_option(sub, &options->queue, "folder of the jobs; created if missing");
  sub->add_option("--listen", options->listen,
                  "HOST:PORT of the server's own metrics, on rank 0; off: none. If the port is in "
                  "use, another one is used")
      ->capture_default_str();
  sub->add_option("--token-file", options->token_file,
                  "file with the bearer token of the metrics; required for addresses that other "
                  "hosts can reach");
  sub->add_option("--max-queued", options->max_queued, "maximum number of waiting jobs")
      ->check(daemon::whole_number(1, 1000000))
      ->capture_default_str();
  sub->add_option("--max-tries", options->max_tries,
                  "starts of a job in a row that may lose ranks without a new checkpoint before "
                  "the job fails")
      ->check(daemon::whole_number(1, 1000000))
      ->capture_default_str();
  sub->add_flag("--until-empty", options->until_empty, "end with 0 when no job waits");
}

}  // namespace lockstep::job_server
