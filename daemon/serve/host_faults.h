#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include <cstdint>

namespace lockstep::daemon {

/// Faults of the host that jobs of a server have met (a full disk, a missing mount), and which jobs
/// may begin in spite of them. After one fault the other jobs of the queue may begin: if they run,
/// the job itself is odd. After faults of two jobs in a row all wait, for 30 s, then twice as long
/// each time, up to 10 minutes.
class HostFaults {
 public:
  using Clock = std::chrono::steady_clock;

  /// A job has met one and was put back. True if that counts as one of its tries: other jobs have
  /// run to their end here since it met the one before.
  bool note_fault(int64_t job, Clock::time_point now) {
    const auto before = ran_since_.find(job);
    const bool counts = before != ran_since_.end() && before->second;
    ran_since_[job] = false;
    held_until_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                            std::min(kLongest_s, kShortest_s * std::exp2(num_in_a_row_))));
    ++num_in_a_row_;
    return counts;
  }

  /// A job has run to its end, whatever that was.
  void note_end(int64_t job) {
    ran_since_.erase(job);
    for (auto& [other, ran] : ran_since_) ran = true;
    num_in_a_row_ = 0;
  }

  bool may_begin(int64_t job, Clock::time_point now) const {
    if (num_in_a_row_ == 0 || now >= held_until_) return true;
    const auto met = ran_since_.find(job);
    return num_in_a_row_ == 1 && (met == ran_since_.end() || met->second);
  }

  bool is_holding(Clock::time_point now) const { return num_in_a_row_ > 0 && now < held_until_; }

 private:
  static constexpr double kShortest_s = 30, kLongest_s = 600;

  /// Jobs that have met a fault; whether another one has run to its end since.
  std::map<int64_t, bool> ran_since_;
  int num_in_a_row_ = 0;
  Clock::time_point held_until_;
};

}  // namespace lockstep::daemon
