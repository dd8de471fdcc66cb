#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

namespace lockstep::metrics {

struct PageRequest {
  std::string address;  ///< "n1:9465"
  std::string target;   ///< "/metrics"
  std::string token;    ///< of the header Authorization
  std::chrono::milliseconds time_limit{2000};
};

/// Asks for a page with one GET on a connection of its own. `done` gets its text, or nothing where
/// there is no answer 200 in time; once, on the thread that runs `io`.
void fetch_page(boost::asio::io_context& io, const PageRequest& request,
                std::function<void(std::optional<std::string>)> done);

}  // namespace lockstep::metrics
