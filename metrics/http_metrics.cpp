#include "metrics/http_metrics.h"

#include <array>
#include <string>
#include <utility>

#include "metrics/exposition.h"
#include "metrics/series.h"

namespace lockstep::metrics {
namespace {

/// Combinations that are likely, so that their counters start at 0.
constexpr std::array kExpected = {
    std::pair{kMetricsRoute, 200}, std::pair{kLiveRoute, 200},  std::pair{kLiveRoute, 503},
    std::pair{kReadyRoute, 200},   std::pair{kReadyRoute, 503}, std::pair{kHealthRoute, 200},
    std::pair{kHealthRoute, 503},  std::pair{kIndexRoute, 200}, std::pair{kLiveDataRoute, 200},
    std::pair{kTargetsRoute, 200}, std::pair{kOtherRoute, 400}, std::pair{kOtherRoute, 401},
    std::pair{kOtherRoute, 404},   std::pair{kOtherRoute, 405}, std::pair{kOtherRoute, 413},
    std::pair{kOtherRoute, 429},   std::pair{kOtherRoute, 431}, std::pair{kOtherRoute, 500},
};

/// Label values of the rejections.
constexpr std::array kReasons = {std::pair{Rejection::kLimit, "limit"},
                                 std::pair{Rejection::kTimeout, "timeout"},
                                 std::pair{Rejection::kHeader, "header"},
                                 std::pair{Rejection::kBody, "body"},
                                 std::pair{Rejection::kCredentials, "credentials"},
                                 std::pair{Rejection::kTls, "tls"}};

/// Returns the route under which durations are recorded. A histogram is seven series, so there are
/// few.
std::string_view timed_as(std::string_view route) {
  return route == kMetricsRoute ? route : kOtherRoute;
}

}  // namespace

struct HttpMetrics::Series {
  explicit Series(prometheus::Registry& r)
      : requests(counter_family(r, "lockstep_http_requests_total")),
        duration(histogram_family(r, "lockstep_http_request_duration_seconds")),
        rejections(counter_family(r, "lockstep_http_rejected_connections_total")),
        missing_ranks(gauge_family(r, "lockstep_http_missing_ranks").Add({})) {}

  prometheus::Counter& count_of(std::string_view route, int status) {
    // Routes and status codes come from this program, never from a client, so the series are
    // bounded.
    return requests.Add({{"handler", std::string(route)}, {"code", std::to_string(status)}});
  }
  prometheus::Histogram& duration_of(std::string_view route) {
    static const prometheus::Histogram::BucketBoundaries kBounds{0.001, 0.01, 0.1, 1};
    return duration.Add({{"handler", std::string(timed_as(route))}}, kBounds);
  }

  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Histogram>& duration;
  prometheus::Family<prometheus::Counter>& rejections;
  std::array<prometheus::Counter*, kReasons.size()> by_reason{};
  prometheus::Gauge& missing_ranks;
};

HttpMetrics::HttpMetrics(prometheus::Registry& registry)
    : series_(std::make_unique<Series>(registry)) {
  for (const auto& [route, status] : kExpected) {
    series_->count_of(route, status);
    series_->duration_of(route);
  }
  for (const auto& [reason, name] : kReasons)
    series_->by_reason[static_cast<size_t>(reason)] = &series_->rejections.Add({{"reason", name}});
}

HttpMetrics::~HttpMetrics() = default;

void HttpMetrics::on_answer(std::string_view route, int status, double duration_s) {
  series_->count_of(route, status).Increment();
  series_->duration_of(route).Observe(duration_s);
}

void HttpMetrics::set_missing_ranks(int num_ranks) { series_->missing_ranks.Set(num_ranks); }

void HttpMetrics::on_rejected(Rejection reason) {
  series_->by_reason[static_cast<size_t>(reason)]->Increment();
}

}  // namespace lockstep::metrics
