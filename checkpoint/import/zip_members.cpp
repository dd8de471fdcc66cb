// Offsets in number_at() are those of the records in APPNOTE.TXT, 4.3. The directory at the end of
// the file lists all members.
#include "checkpoint/import/torch_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <zlib.h>

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr size_t kEntryBytes = 46;
constexpr int64_t kLocalBytes = 30;
constexpr uint32_t kEndMark = 0x06054b50, kLocatorMark = 0x07064b50, kEnd64Mark = 0x06064b50;
constexpr uint32_t kEntryMark = 0x02014b50, kLocalMark = 0x04034b50;
constexpr uint32_t kSeeBelow = 0xffffffff;  // the number is in a 64-bit record
constexpr uint16_t kExtra64 = 1, kEncrypted = 1, kStored = 0;
constexpr int64_t kMaxDirectoryBytes = int64_t{64} << 20;

static_assert(std::endian::native == std::endian::little, "numbers are read in native byte order");

[[noreturn]] void refuse_zip(const files::Reader& file, const std::string& why) {
  throw Error(ExitCode::kBadData, "weights",
              fmt::format("{} is not a valid zip archive: {}", file.path().string(), why));
}

template <typename T>
T number_at(std::string_view bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.substr(offset).data(), sizeof value);
  return value;
}

std::string read_range(const files::Reader& file, int64_t offset, int64_t num_bytes) {
  // Order of the comparisons: offset + num_bytes may overflow.
  if (offset < 0 || num_bytes < 0 || num_bytes > file.num_bytes() ||
      offset > file.num_bytes() - num_bytes)
    refuse_zip(file, fmt::format("{} bytes at offset {} are outside it; the file is truncated",
                                 num_bytes, offset));
  std::string bytes(static_cast<size_t>(num_bytes), '\0');
  file.read_at(offset, bytes);
  return bytes;
}

struct Directory {
  int64_t offset = 0, num_bytes = 0;
};

Directory find_directory(const files::Reader& file) {
  if (file.num_bytes() < kEndBytes) refuse_zip(file, "it is too short");
  // torch.save() writes no archive comment, so the end record is exactly at the end.
  const int64_t end_offset = file.num_bytes() - kEndBytes;
  const std::string end = read_range(file, end_offset, kEndBytes);
  if (number_at<uint32_t>(end, 0) != kEndMark)
    refuse_zip(file, "it does not end in a directory; the file is truncated");
  Directory directory{number_at<uint32_t>(end, 16), number_at<uint32_t>(end, 12)};
  const std::string locator =
      end_offset < kLocatorBytes ? "" : read_range(file, end_offset - kLocatorBytes, kLocatorBytes);
  // The locator, directly before the end record, gives the place of the 64-bit end record.
  if (!locator.empty() && number_at<uint32_t>(locator, 0) == kLocatorMark) {
    const std::string end64 = read_range(file, number_at<int64_t>(locator, 8), kEnd64Bytes);
    if (number_at<uint32_t>(end64, 0) != kEnd64Mark) refuse_zip(file, "its 64-bit end is damaged");
    directory = {number_at<int64_t>(end64, 48), number_at<int64_t>(end64, 40)};
  }
  if (directory.num_bytes > kMaxDirectoryBytes)
    refuse_zip(file, fmt::format("its directory has {} bytes, at most {} are supported",
                                 directory.num_bytes, kMaxDirectoryBytes));
  return directory;
}

/// Reads the 64-bit numbers of an entry's extra field, for those numbers that refer to it, in this
/// order.
void read_extra(const files::Reader& file, std::string_view extra,
                std::initializer_list<int64_t*> numbers) {
  while (extra.size() >= 4) {
    const auto id = number_at<uint16_t>(extra, 0);
    const auto num_bytes = std::min<size_t>(number_at<uint16_t>(extra, 2), extra.size() - 4);
    std::string_view field = extra.substr(4, num_bytes);
    extra.remove_prefix(4 + num_bytes);
    if (id != kExtra64) continue;
    for (int64_t* number : numbers) {
      if (*number != kSeeBelow) continue;
      if (field.size() < 8) refuse_zip(file, "a 64-bit number is missing");
      *number = number_at<int64_t>(field, 0);
      field.remove_prefix(8);
    }
    return;
  }
}

/// Removes one entry from the directory and returns it.
std::pair<std::string, ZipMember> take_entry(const files::Reader& file, std::string_view* rest) {
  if (rest->size() < kEntryBytes || number_at<uint32_t>(*rest, 0) != kEntryMark)
    refuse_zip(file, "its directory is damaged");
  const std::string_view entry = rest->substr(0, kEntryBytes);
  const size_t name_bytes = number_at<uint16_t>(entry, 28);
  const size_t extra_bytes = number_at<uint16_t>(entry, 30);
  const size_t all_bytes = kEntryBytes + name_bytes + extra_bytes + number_at<uint16_t>(entry, 32);
  if (rest->size() < all_bytes) refuse_zip(file, "its directory is damaged");
  const std::string name(rest->substr(kEntryBytes, name_bytes));
  int64_t stored = number_at<uint32_t>(entry, 20), whole = number_at<uint32_t>(entry, 24);
  int64_t offset = number_at<uint32_t>(entry, 42);
  read_extra(file, rest->substr(kEntryBytes + name_bytes, extra_bytes), {&whole, &stored, &offset});
  const bool is_stored = number_at<uint16_t>(entry, 10) == kStored && stored == whole &&
                         (number_at<uint16_t>(entry, 8) & kEncrypted) == 0;
  if (is_stored && (whole < 0 || whole > file.num_bytes()))
    refuse_zip(file, fmt::format("'{}' is truncated", name));
  rest->remove_prefix(all_bytes);
  return {name,
          {.header_offset = offset,
           .num_bytes = whole,
           .crc32 = number_at<uint32_t>(entry, 16),
           .is_stored = is_stored}};
}

bool is_checksum_of(uint32_t crc, std::string_view bytes) {
  return ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) == crc;
}

/// Marks the checksums as missing if all are 0, as torch.save() writes them when told to compute
/// none.
void note_missing_checksums(std::map<std::string, ZipMember>* members) {
  const bool has_any = std::any_of(members->begin(), members->end(),
                                   [](const auto& row) { return row.second.crc32 != 0; });
  for (auto& [name, member] : *members) member.has_crc32 = has_any;
}

}  // namespace

std::map<std::string, ZipMember> zip_members(const files::Reader& file) {
  const Directory directory = find_directory(file);
  const std::string bytes = read_range(file, directory.offset, directory.num_bytes);
  std::map<std::string, ZipMember> members;
  for (std::string_view rest = bytes; !rest.empty();) {
    auto [name, member] = take_entry(file, &rest);
    if (!members.emplace(name, member).second)
      refuse_zip(file, fmt::format("it contains '{}' twice", name));
  }
  note_missing_checksums(&members);
  return members;
}

std::string read_member(const files::Reader& file, const std::string& name, const ZipMember& member,
                        int64_t max_bytes) {
  if (!member.is_stored) refuse_zip(file, fmt::format("'{}' is compressed or encrypted", name));
  if (member.num_bytes > max_bytes)
    refuse_zip(file, fmt::format("'{}' has {} bytes, at most {} are supported", name,
                                 member.num_bytes, max_bytes));
  const std::string local = read_range(file, member.header_offset, kLocalBytes);
  if (number_at<uint32_t>(local, 0) != kLocalMark)
    refuse_zip(file, fmt::format("'{}' has no header at offset {}", name, member.header_offset));
  // The local header repeats name and extra field, but their lengths may differ from the
  // directory's.
  const int64_t begin = member.header_offset + kLocalBytes + number_at<uint16_t>(local, 26) +
                        number_at<uint16_t>(local, 28);
  std::string bytes = read_range(file, begin, member.num_bytes);
  if (member.has_crc32 && !is_checksum_of(member.crc32, bytes))
    refuse_zip(file, fmt::format("the checksum of '{}' is wrong: its bytes are damaged", name));
  return bytes;
}

}  // namespace lockstep::checkpoint
