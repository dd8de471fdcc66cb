#pragma once

#include <memory>

#include "metrics/http/http_server.h"

namespace prometheus {
class Registry;
}

namespace lockstep::metrics {

/// Counts a server's answers and rejections in a registry, which must outlive the object.
class HttpMetrics final : public HttpObserver {
 public:
  explicit HttpMetrics(prometheus::Registry& registry);
  ~HttpMetrics() override;

  void on_answer(std::string_view route, int status, double duration_s) override;
  void on_rejected(Rejection reason) override;
  /// Sets the number of ranks whose pages are missing, among those that this process serves. Any
  /// thread.
  void set_missing_ranks(int num_ranks);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace lockstep::metrics
