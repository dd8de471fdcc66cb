#include "checkpoint/files/work_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/process/cores.h"

namespace lockstep::checkpoint {
namespace {

/// Keeps the error of the lowest item, which is rethrown in the end.
class LowestFault {
 public:
  void note(size_t item, std::exception_ptr fault) {
    const std::lock_guard lock(mutex_);
    if (fault_ && item_ < item) return;
    item_ = item;
    fault_ = std::move(fault);
  }
  void throw_if_any() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  std::mutex mutex_;
  size_t item_ = 0;
  std::exception_ptr fault_;
};

}  // namespace

int default_num_threads() {
  constexpr int kMaxThreads = 8;
  return std::min(num_usable_cores(), kMaxThreads);
}

void for_each_on_threads(size_t num_items, int num_threads,
                         const std::function<void(size_t item, size_t thread)>& use) {
  std::atomic<size_t> next{0};
  LowestFault fault;
  const auto work = [&](size_t thread) {
    for (size_t item = next++; item < num_items; item = next++) {
      try {
        use(item, thread);
      } catch (...) {
        fault.note(item, std::current_exception());
        // Ends the loops of all threads.
        next = num_items;
      }
    }
  };
  const size_t most = static_cast<size_t>(std::max(num_threads, 1));
  std::vector<std::jthread> helpers;
  try {
    for (size_t thread = 1; thread < std::min(most, num_items); ++thread)
      helpers.emplace_back(work, thread);
  } catch (const std::system_error&) {  // thread limit reached: the existing ones do the work
  }
  work(0);
  helpers.clear();  // joins
  fault.throw_if_any();
}

}  // namespace lockstep::checkpoint
