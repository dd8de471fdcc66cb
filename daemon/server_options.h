#pragma once

#include <string>

#include "daemon/serve/serve_options.h"

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// Adds --queue, which LOCKSTEP_QUEUE may give too.
void add_queue_option(CLI::App* sub, std::string* queue, const char* help);

/// Adds --queue, --listen, ...: of `lockstepd serve` and `lockstep serve`.
void add_server_options(CLI::App* sub, ServeOptions* options);

}  // namespace lockstep::daemon
