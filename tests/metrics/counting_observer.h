#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "metrics/http/http_server.h"
#include "tests/support/patience.h"

namespace lockstep::tests {

class CountingObserver final : public metrics::HttpObserver {
 public:
  void on_answer(std::string_view route, int status, double duration_s) override {
    const std::lock_guard lock(mutex_);
    ++answers_[std::string(route) + " " + std::to_string(status)];
    if (duration_s < 0) ++answers_["negative duration"];
  }
  void on_rejected(metrics::Rejection reason) override {
    ++rejections_[static_cast<size_t>(reason)];
  }

  int answers(const std::string& route_and_status) {
    const std::lock_guard lock(mutex_);
    return answers_[route_and_status];
  }
  int rejections(metrics::Rejection reason) const {
    return rejections_[static_cast<size_t>(reason)];
  }
  /// Waits for `count` of them: a client may see its connection end before the server has counted
  /// that.
  bool sees(metrics::Rejection reason, int count) const {
    return comes_true([&] { return rejections(reason) >= count; }) && rejections(reason) == count;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> answers_;
  std::array<std::atomic<int>, 6> rejections_{};
};

}  // namespace lockstep::tests
