#include "checkpoint/reader/sparse_form.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/bits/bit_mask.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kFolder = "_lockstep/sparse/";
constexpr std::string_view kForm = "/form";
constexpr size_t kMaxSparseDimensions = 64;

/// Returns the numbers of "64, 128"; nullopt for any other text or too many elements.
std::optional<std::vector<int64_t>> parse_shape(std::string_view text) {
  std::vector<int64_t> shape;
  int64_t num_elements = 1;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    int64_t dim = 0;
    const auto [behind, fault] = std::from_chars(at, end, dim);
    if (fault != std::errc() || dim < 0 || shape.size() == kMaxSparseDimensions)
      return std::nullopt;
    if (__builtin_mul_overflow(num_elements, std::max<int64_t>(dim, 1), &num_elements) ||
        num_elements >= int64_t{1} << 60)
      return std::nullopt;
    shape.push_back(dim);
    at = behind;
    if (at == end) break;
    if (end - at < 3 || at[0] != ',' || at[1] != ' ') return std::nullopt;
    at += 2;
  }
  return shape;
}

}  // namespace

std::optional<std::string> key_of_sparse_form(std::string_view name) {
  if (!name.starts_with(kFolder) || !name.ends_with(kForm) ||
      name.size() <= kFolder.size() + kForm.size())
    return std::nullopt;
  return std::string(name.substr(kFolder.size(), name.size() - kFolder.size() - kForm.size()));
}

int64_t SparseForm::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

std::string text_of(const SparseForm& form) {
  return fmt::format("[{}] {}", fmt::join(form.shape, ", "), form.mask_name);
}

std::optional<SparseForm> parse_sparse_form(std::string_view text) {
  const size_t end = text.find("] ");
  if (!text.starts_with('[') || end == std::string_view::npos) return std::nullopt;
  std::optional<std::vector<int64_t>> shape = parse_shape(text.substr(1, end - 1));
  if (!shape) return std::nullopt;
  SparseForm form{std::move(*shape), std::string(text.substr(end + 2))};
  // Only the canonical text is accepted, so that equal forms have equal texts.
  if (form.mask_name.empty() || text_of(form) != text) return std::nullopt;
  return form;
}

int64_t kept_before(const uint8_t* bits, int64_t end) {
  int64_t count = count_kept(bits, end / 8 * 8);
  for (int64_t item = end / 8 * 8; item < end; ++item) count += is_kept(bits, item) ? 1 : 0;
  return count;
}

void unpack_range(const char* packed, const uint8_t* bits, const ElementRange& range,
                  int item_bytes, char* items) {
  const auto one_by_one = [&](int64_t from, int64_t to) {
    for (int64_t item = from; item < to; ++item) {
      char* target = items + item * item_bytes;
      if (!is_kept(bits, item)) {
        std::memset(target, 0, static_cast<size_t>(item_bytes));
        continue;
      }
      std::memcpy(target, packed, static_cast<size_t>(item_bytes));
      packed += item_bytes;
    }
  };
  // Whole bytes of the mask at once; single items at both ends.
  const int64_t first = std::min((range.begin_E + 7) / 8 * 8, range.end_E);
  const int64_t last = std::max(range.end_E / 8 * 8, first);
  one_by_one(range.begin_E, first);
  if (last > first)
    packed += item_bytes * unpack_kept(packed, bits + first / 8, last - first, item_bytes,
                                       items + first * item_bytes);
  one_by_one(last, range.end_E);
}

}  // namespace lockstep::checkpoint
