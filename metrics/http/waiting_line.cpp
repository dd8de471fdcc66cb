#include "metrics/http/waiting_line.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace lockstep::metrics {
namespace {

double seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

WaitingLine::WaitingLine(boost::asio::io_context& io, double share, double burst_s)
    : turn_(io), allowance_(share, burst_s) {}

void WaitingLine::enter(Line* line, Answer answer) {
  const bool none_waits = good_.empty() && refused_.empty();
  line->push_back({seconds(CLOCK_MONOTONIC), std::move(answer)});
  if (none_waits) let_out();
}

WaitingLine::Line& WaitingLine::older_line() {
  if (good_.empty() || refused_.empty()) return good_.empty() ? refused_ : good_;
  return good_.front().since_s <= refused_.front().since_s ? good_ : refused_;
}

void WaitingLine::let_out() {
  while (!good_.empty() || !refused_.empty()) {
    const double now_s = seconds(CLOCK_MONOTONIC);
    const double wait_s = allowance_.wait_s(now_s, seconds(CLOCK_THREAD_CPUTIME_ID));
    const double longest_s = older_line().front().since_s + kLongest_s - now_s;
    if (wait_s > 0 && longest_s > 0) return wait(std::min(wait_s, longest_s));
    Line& line = longest_s <= 0 ? older_line() : good_.empty() ? refused_ : good_;
    const Answer answer = std::move(line.front().answer);
    line.pop_front();
    try {
      answer();
    } catch (...) {
      wait(0);  // what one throws must not hold up the others
      throw;
    }
  }
}

void WaitingLine::wait(double time_s) {
  turn_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(time_s)));
  turn_.async_wait([this](boost::system::error_code fault) {
    if (!fault) let_out();
  });
}

}  // namespace lockstep::metrics
