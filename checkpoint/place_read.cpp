#include "checkpoint/place_read.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "base/digest.h"
#include "checkpoint/tensor_runs.h"
#include "checkpoint/work_threads.h"

namespace lockstep::checkpoint {
namespace {

/// Fits a core's own cache together with what is copied; a multiple of every element size.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
/// Below this, starting threads takes longer than they save.
constexpr int64_t kFewBytes = int64_t{4} << 20;

/// Bytes [begin, end) of a place.
struct Piece {
  size_t item = 0;
  int64_t begin = 0, end = 0;
  uint32_t crc = 0;
  bool is_sound_bool = true;

  int64_t num_bytes() const { return end - begin; }
};

std::vector<Piece> pieces_of(const std::vector<PlaceRead>& places) {
  std::vector<Piece> pieces;
  for (size_t item = 0; item < places.size(); ++item)
    for (int64_t at = 0; at < places[item].place->num_bytes; at += kPieceBytes)
      pieces.push_back({item, at, std::min(at + kPieceBytes, places[item].place->num_bytes)});
  return pieces;
}

/// Calls use(box_E, tensor_E, num_elements) for each run of the piece that is wanted.
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

/// The memory of one wanted element.
char* memory_of(const PlaceRead& read, int64_t tensor_E) {
  if (read.held_at_E == nullptr) return read.values + tensor_E * read.item_bytes;
  const auto range =
      std::partition_point(read.held->begin(), read.held->end(),
                           [&](const ElementRange& one) { return one.end_E <= tensor_E; });
  const int64_t at_E = (*read.held_at_E)[static_cast<size_t>(range - read.held->begin())] +
                       tensor_E - range->begin_E;
  return read.values + at_E * read.item_bytes;
}

/// Where the piece can be read to at once: it is wanted wholly and goes to one stretch. Null if
/// not.
char* direct_target(const PlaceRead& read, const Piece& piece) {
  const int64_t first_E = piece.begin / read.item_bytes;
  const int64_t last_E = piece.end / read.item_bytes - 1;
  const int64_t begin_E = tensor_element(read.box, *read.shape, first_E);
  const int64_t num_elements = last_E - first_E + 1;
  if (first_E / run_elements(read.box, *read.shape) != last_E / run_elements(read.box, *read.shape))
    return nullptr;
  int64_t wanted = read.held == nullptr ? num_elements : 0;
  if (read.held != nullptr)
    for_each_common(*read.held, begin_E, begin_E + num_elements,
                    [&](int64_t from_E, int64_t to_E) { wanted += to_E - from_E; });
  return wanted == num_elements ? memory_of(read, begin_E) : nullptr;
}

void scatter(const PlaceRead& read, const Piece& piece, const char* bytes) {
  for_each_wanted(read, piece, [&](int64_t box_E, int64_t tensor_E, int64_t count) {
    std::memcpy(memory_of(read, tensor_E), bytes + (box_E * read.item_bytes - piece.begin),
                static_cast<size_t>(count * read.item_bytes));
  });
}

bool holds_bools(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return (byte & ~1) == 0; });
}

void read_piece(const PlaceRead& read, std::vector<char>* buffer, Piece* piece) {
  char* target = read.values == nullptr ? nullptr : direct_target(read, *piece);
  const bool is_direct = target != nullptr;
  if (!is_direct) {
    buffer->resize(std::max(buffer->size(), static_cast<size_t>(piece->num_bytes())));
    target = buffer->data();
  }
  const std::span<char> bytes(target, static_cast<size_t>(piece->num_bytes()));
  read.file->read_at(read.place->offset + piece->begin, bytes);
  const std::string_view content(bytes.data(), bytes.size());
  piece->crc = crc32c(content);
  piece->is_sound_bool = !read.is_bool || holds_bools(content);
  if (!is_direct && read.values != nullptr) scatter(read, *piece, target);
}

/// What the pieces of one place say of it; the first of them is at `piece`, which moves behind
/// them.
std::string defect_of(const PlaceRead& read, size_t item, const std::vector<Piece>& pieces,
                      size_t* piece) {
  uint32_t crc = 0;
  bool is_sound_bool = true;
  for (; *piece < pieces.size() && pieces[*piece].item == item; ++*piece) {
    crc = crc32c_joined(crc, pieces[*piece].crc, pieces[*piece].num_bytes());
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

std::vector<PlaceDefect> read_places(const std::vector<PlaceRead>& places, int num_threads) {
  std::vector<Piece> pieces = pieces_of(places);
  int64_t num_bytes = 0;
  for (const PlaceRead& read : places) num_bytes += read.place->num_bytes;
  if (num_bytes < kFewBytes)
    num_threads = 1;
  else if (num_threads == 0)
    num_threads = default_num_threads();
  std::vector<std::vector<char>> buffers(static_cast<size_t>(num_threads));
  for_each_on_threads(pieces.size(), num_threads, [&](size_t i, size_t thread) {
    read_piece(places[pieces[i].item], &buffers[thread], &pieces[i]);
  });
  std::vector<PlaceDefect> defects;
  size_t piece = 0;
  for (size_t item = 0; item < places.size(); ++item) {
    std::string what = defect_of(places[item], item, pieces, &piece);
    if (!what.empty()) defects.push_back({item, std::move(what)});
  }
  return defects;
}

}  // namespace lockstep::checkpoint
