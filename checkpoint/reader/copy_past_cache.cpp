#include "checkpoint/reader/copy_past_cache.h"

#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep::checkpoint {
namespace {

#ifdef __SSE2__

/// Size in bytes below which normal stores through the caches are faster.
constexpr int64_t kManyBytes = int64_t{64} << 10;
constexpr int64_t kLine = 64;

/// Copies whole cache lines; `to` must be aligned to a line.
void stream_lines(char* to, const char* from, int64_t num_lines) {
  for (int64_t i = 0; i < num_lines; ++i, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // makes the stores visible before later stores
}

#endif

}  // namespace

// Streaming stores need an aligned target, so head and tail are copied normally.
void copy_past_cache(char* to, const char* from, int64_t num_bytes) {
#ifdef __SSE2__
  if (num_bytes >= kManyBytes) {
    const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
    const int64_t head = (kLine - misplaced) % kLine;
    std::memcpy(to, from, static_cast<size_t>(head));
    const int64_t num_lines = (num_bytes - head) / kLine;
    stream_lines(to + head, from + head, num_lines);
    to += head + num_lines * kLine;
    from += head + num_lines * kLine;
    num_bytes -= head + num_lines * kLine;
  }
#endif
  std::memcpy(to, from, static_cast<size_t>(num_bytes));
}

}  // namespace lockstep::checkpoint
