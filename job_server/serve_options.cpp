#include "job_server/serve_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "daemon/config/number_range.h"

namespace lockstep::daemon {

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
  add_queue_option(sub, &options->queue, "folder of the jobs; made if it is not there");
  sub->add_option("--listen", options->listen,
                  "HOST:PORT of the server's own metrics, on rank 0; off: none. A port that is "
                  "taken: any other")
      ->capture_default_str();
  sub->add_option("--token-file", options->token_file,
                  "who asks for them must know it; needed where other hosts reach them");
  sub->add_option("--max-queued", options->max_queued, "so many jobs may wait")
      ->check(whole_number(1, 1000000))
      ->capture_default_str();
  sub->add_option("--max-tries", options->max_tries,
                  "starts of a job in a row that lost ranks and brought no new save; then it has "
                  "failed")
      ->check(whole_number(1, 1000000))
      ->capture_default_str();
  sub->add_flag("--until-empty", options->until_empty, "end with 0 where no job waits");
}

}  // namespace lockstep::daemon
