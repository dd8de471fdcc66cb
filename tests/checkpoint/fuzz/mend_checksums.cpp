#include <optional>
#include <string_view>

#include "base/digest.h"
#include "checkpoint/format/bundle_encoding.h"
#include "row_mutator.h"

namespace lockstep::fuzz {
namespace {

constexpr size_t kFooterBytes = 48;
constexpr std::string_view kMagic("\x57\xfb\x80\x8b\x24\x75\x47\xdb", 8);

/// Writes the crc of the block at this place, if it is in the table; returns its content.
std::optional<std::string> mend_block(std::string* table, std::string_view* place) {
  const auto offset = checkpoint::take_varint(place), num_bytes = checkpoint::take_varint(place);
  if (!offset || !num_bytes || *offset > table->size() || *num_bytes > table->size() - *offset ||
      table->size() - *offset - *num_bytes < 5)
    return std::nullopt;
  const std::string_view checked(table->data() + *offset, *num_bytes + 1);
  table->replace(*offset + *num_bytes + 1, 4, checkpoint::fixed32(masked_crc32c(crc32c(checked))));
  return table->substr(*offset, *num_bytes);
}

}  // namespace

void mend_checksums(std::string* table) {
  if (table->size() < kFooterBytes) return;
  table->replace(table->size() - kMagic.size(), kMagic.size(), kMagic);
  const std::string footer = table->substr(table->size() - kFooterBytes);
  std::string_view places = footer;
  mend_block(table, &places);
  const std::optional<std::string> index = mend_block(table, &places);
  if (!index) return;
  std::string_view rest = *index;
  while (!rest.empty()) {
    const auto shared = checkpoint::take_varint(&rest), added = checkpoint::take_varint(&rest);
    const auto value_bytes = checkpoint::take_varint(&rest);
    if (!shared || !added || !value_bytes || *added > rest.size() ||
        *value_bytes > rest.size() - *added)
      return;
    std::string_view place = rest.substr(*added, *value_bytes);
    mend_block(table, &place);
    rest.remove_prefix(*added + *value_bytes);
  }
}

}  // namespace lockstep::fuzz
