#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::checkpoint {

/// Default number of reader threads: one per core that this process may use, at most 8. Above that,
/// memory is the limit.
int default_num_threads();

/// Calls use(item, thread) once for each item below num_items, lower items first. At most
/// `num_threads` threads run at a time, including the caller's; `thread` counts from 0. Returns
/// after all have ended. If calls throw, no further item starts, and the error of the lowest failed
/// item is rethrown.
void for_each_on_threads(size_t num_items, int num_threads,
                         const std::function<void(size_t item, size_t thread)>& use);

}  // namespace lockstep::checkpoint
