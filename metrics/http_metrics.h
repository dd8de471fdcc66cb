#pragma once

#include <memory>

#include "metrics/http/http_server.h"

namespace prometheus {
class Registry;
}

namespace lockstep::metrics {

/// Counts a server's answers and refusals in a registry, which must outlive it.
class HttpMetrics final : public HttpObserver {
 public:
  explicit HttpMetrics(prometheus::Registry& registry);
  ~HttpMetrics() override;

  void on_answer(std::string_view route, int status, double duration_s) override;
  void on_rejected(Rejection reason) override;
  /// Of the others whose pages this process shows; from any thread.
  void set_missing_ranks(int num_ranks);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace lockstep::metrics
