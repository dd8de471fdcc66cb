#include "heap_meter.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>

// Declarations of the sanitizer's allocator_interface.h, which g++ 12 does not ship.
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void* block);
}

namespace lockstep::fuzz {
namespace {

std::atomic<int64_t> held_bytes{0}, base_bytes{0}, most_bytes{0};

void note_malloc(const volatile void* block, size_t bytes) {
  if (block == nullptr) return;
  const int64_t now = held_bytes += static_cast<int64_t>(bytes);
  if (now > most_bytes) most_bytes = now;
}

void note_free(const volatile void* block) {
  if (block == nullptr) return;
  held_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(block));
}

}  // namespace

void HeapMeter::install() {
  if (__sanitizer_install_malloc_and_free_hooks(note_malloc, note_free) == 0) std::abort();
}

void HeapMeter::restart() {
  base_bytes = held_bytes.load();
  most_bytes = held_bytes.load();
}

int64_t HeapMeter::peak_bytes() { return most_bytes - base_bytes; }

}  // namespace lockstep::fuzz
