#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::checkpoint {

/// Threads that reading may use where nobody says how many: one for each core that this process may
/// run on, at most 8 (memory is then the limit).
int default_num_threads();

/// Calls use(item, thread) once for each item below num_items, lower items first, from at most
/// `num_threads` threads at a time, the caller's among them; `thread` counts from 0. Returns when
/// all have ended. If calls throw, no further item is begun, and the error of the lowest item that
/// failed is thrown on.
void for_each_on_threads(size_t num_items, int num_threads,
                         const std::function<void(size_t item, size_t thread)>& use);

}  // namespace lockstep::checkpoint
