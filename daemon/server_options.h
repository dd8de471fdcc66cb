#pragma once

#include <string>

#include "daemon/serve/serve_options.h"

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// Adds --queue, which LOCKSTEP_QUEUE may set too.
void add_queue_option(CLI::App* sub, std::string* queue, const char* help);

/// Adds the options of `lockstepd serve` and `lockstep serve`: --queue, --listen, ...
void add_server_options(CLI::App* sub, ServeOptions* options);

}  // namespace lockstep::daemon
