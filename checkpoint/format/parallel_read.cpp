#include "checkpoint/format/parallel_read.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/files/store.h"
#include "base/process.h"
#include "checkpoint/format/tensor_slice.h"

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

int default_num_threads(bool is_remote) {
  constexpr int kMaxThreads = 8;
  return is_remote ? kMaxThreads : std::min(num_usable_cores(), kMaxThreads);
}

void for_each_on_threads(size_t num_items, int num_threads,
                         const std::function<void(size_t item)>& use) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t lowest_failed = num_items;
  std::exception_ptr fault;
  const auto work = [&] {
    for (size_t item = next++; item < num_items; item = next++) {
      try {
        use(item);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (item < lowest_failed) fault = std::current_exception();
        lowest_failed = std::min(lowest_failed, item);
        // Ends the loops of all threads.
        next = num_items;
      }
    }
  };
  const size_t most = static_cast<size_t>(std::max(num_threads, 1));
  std::vector<std::jthread> helpers;
  try {
    for (size_t thread = 1; thread < std::min(most, num_items); ++thread)
      helpers.emplace_back(work);
  } catch (const std::system_error&) {  // thread limit reached: the existing ones do the work
  }
  work();
  helpers.clear();  // joins
  if (fault) std::rethrow_exception(fault);
}

// read_places(): two passes over the same pieces, verify all, then copy. So live memory changes
// only if every byte is correct.

namespace {

/// Bytes of a piece: large enough for the system's read-ahead, small enough that threads end
/// together.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
/// Bytes below which starting threads takes longer than it saves.
constexpr int64_t kFewBytes = int64_t{4} << 20;

/// Bytes [begin, end) of a place.
struct Piece {
  size_t item = 0;
  int64_t begin = 0, end = 0;
  const char* bytes = nullptr;  ///< mapped bytes, set by check_piece()
  uint32_t crc = 0;
  bool is_sound_bool = true;
};

/// Returns the end of a piece that begins at this byte of the place. From a store it is the end of
/// a block, so that threads do not wait for the same block.
int64_t end_of_piece(const PlaceRead& read, int64_t at, bool is_remote) {
  constexpr int64_t kBlockBytes = files::RemoteFile::kBlockBytes;
  int64_t end = at + kPieceBytes;
  if (is_remote) {
    const int64_t offset = read.place->offset;
    end = ((offset + at) / kBlockBytes + 1) * kBlockBytes - offset;
    // TensorFlow does not align tensors, but a piece has whole elements.
    end += (read.item_bytes - end % read.item_bytes) % read.item_bytes;
  }
  return std::min(end, read.place->num_bytes);
}

/// Cuts all places into pieces.
std::vector<Piece> pieces_of(const std::vector<PlaceRead>& places, bool is_remote) {
  std::vector<Piece> pieces;
  for (size_t item = 0; item < places.size(); ++item)
    for (int64_t at = 0, end = 0; at < places[item].place->num_bytes; at = end) {
      end = end_of_piece(places[item], at, is_remote);
      pieces.push_back({item, at, end});
    }
  return pieces;
}

/// Returns the first piece of each run that one thread reads, and the number of pieces. From a
/// store a run is the adjacent pieces of a block: other threads would wait for the same block.
std::vector<size_t> runs_of(const std::vector<Piece>& pieces, const std::vector<PlaceRead>& places,
                            bool is_remote) {
  const auto block_of = [&](const Piece& piece) {
    const PlaceRead& read = places[piece.item];
    return std::pair(read.file,
                     (read.place->offset + piece.begin) / files::RemoteFile::kBlockBytes);
  };
  std::vector<size_t> runs;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (i == 0 || !is_remote || block_of(pieces[i]) != block_of(pieces[i - 1])) runs.push_back(i);
  runs.push_back(pieces.size());
  return runs;
}

/// Calls use(box_E, tensor_E, num_elements) for each wanted run of the piece.
template <typename Use>
void for_each_wanted(const PlaceRead& read, const Piece& piece, Use use) {
  for_each_run(read.box, *read.shape, piece.begin / read.item_bytes, piece.end / read.item_bytes,
               [&](int64_t box_E, int64_t tensor_E, int64_t count) {
                 if (read.held == nullptr) return use(box_E, tensor_E, count);
                 for_each_common(*read.held, tensor_E, tensor_E + count,
                                 [&](int64_t from_E, int64_t to_E) {
                                   use(box_E + from_E - tensor_E, from_E, to_E - from_E);
                                 });
               });
}

/// True if every byte is 0 or 1, as bools are stored.
bool holds_bools(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return (byte & ~1) == 0; });
}

/// Maps a piece and computes its crc.
void check_piece(const PlaceRead& read, Piece* piece) {
  const int64_t num_bytes = piece->end - piece->begin;
  const char* bytes = read.file->fetch(read.place->offset + piece->begin, num_bytes);
  const std::string_view content(bytes, static_cast<size_t>(num_bytes));
  piece->bytes = bytes;
  piece->crc = crc32c(content);
  piece->is_sound_bool = !read.is_bool || holds_bools(content);
  if (read.values == nullptr)  // only checked: release it, so that a large tensor takes no memory
    read.file->release(read.place->offset + piece->begin, num_bytes);
}

/// Copies the wanted elements of a piece.
void copy_piece(const PlaceRead& read, const Piece& piece) {
  for_each_wanted(read, piece, [&](int64_t box_E, int64_t tensor_E, int64_t count) {
    copy_past_cache(read.values + tensor_E * read.item_bytes,
                    piece.bytes + (box_E * read.item_bytes - piece.begin), count * read.item_bytes);
  });
}

/// Returns the defect of one place, joined from its pieces; empty if none. `piece` is its first
/// piece and then moves to the first one of the next place.
std::string defect_of(const PlaceRead& read, size_t item, const std::vector<Piece>& pieces,
                      size_t* piece) {
  uint32_t crc = 0;
  bool is_sound_bool = true;
  for (; *piece < pieces.size() && pieces[*piece].item == item; ++*piece) {
    // crcs of adjacent pieces can be joined without reading the bytes again.
    crc = crc32c_joined(crc, pieces[*piece].crc, pieces[*piece].end - pieces[*piece].begin);
    is_sound_bool = is_sound_bool && pieces[*piece].is_sound_bool;
  }
  if (masked_crc32c(crc) != read.place->masked_crc)
    return wrong_crc_text(read.place->num_bytes, masked_crc32c(crc), read.place->masked_crc);
  return is_sound_bool ? "" : "a bool is neither 0 nor 1";
}

}  // namespace

std::string wrong_crc_text(int64_t num_bytes, uint32_t found, uint32_t expected) {
  return fmt::format("wrong crc32c (damaged): {} bytes have {:08x}, the index says {:08x}",
                     num_bytes, found, expected);
}

std::vector<PlaceDefect> read_places(const std::vector<PlaceRead>& places, int num_threads,
                                     bool is_remote) {
  std::vector<Piece> pieces = pieces_of(places, is_remote);
  int64_t num_bytes = 0;
  for (const PlaceRead& read : places) num_bytes += read.place->num_bytes;
  if (num_bytes < kFewBytes) num_threads = 1;
  const std::vector<size_t> runs = runs_of(pieces, places, is_remote);
  for_each_on_threads(runs.size() - 1, num_threads, [&](size_t run) {
    for (size_t i = runs[run]; i < runs[run + 1]; ++i)
      check_piece(places[pieces[i].item], &pieces[i]);
  });
  std::vector<PlaceDefect> defects;
  size_t piece = 0;
  for (size_t item = 0; item < places.size(); ++item) {
    std::string what = defect_of(places[item], item, pieces, &piece);
    if (!what.empty()) defects.push_back({item, std::move(what)});
  }
  if (!defects.empty()) return defects;
  for_each_on_threads(pieces.size(), num_threads, [&](size_t i) {
    const PlaceRead& read = places[pieces[i].item];
    if (read.values != nullptr) copy_piece(read, pieces[i]);
  });
  return {};
}

}  // namespace lockstep::checkpoint
