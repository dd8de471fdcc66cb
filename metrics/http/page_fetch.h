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
  std::string token;    ///< for the header Authorization
  std::chrono::milliseconds time_limit{2000};
  std::string accept = "*/*";
};

/// Requests a page with one GET on a new connection. `done` gets its text, or nullopt without a 200
/// answer in time. It is called once, on the thread that runs `io`.
void fetch_page(boost::asio::io_context& io, const PageRequest& request,
                std::function<void(std::optional<std::string>)> done);

}  // namespace lockstep::metrics
