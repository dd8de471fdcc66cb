// Offsets in a header are those of the ustar format (POSIX pax, "ustar Interchange Format").
#include "data/formats/parsers.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace lockstep::data {
namespace {

constexpr int64_t kTarBlock = 512;
constexpr int64_t kMaxExtendedHeader = int64_t{1} << 20;

/// Returns a text that ends with its field or at a zero byte.
std::string_view tar_text(std::string_view header, size_t at, size_t length) {
  const std::string_view field = header.substr(at, length);
  return field.substr(0, field.find('\0'));
}

/// Parses octal digits, or a big-endian number if the first bit is set (GNU's base-256).
std::optional<int64_t> tar_number(std::string_view header, size_t at, size_t length) {
  const std::string_view field = header.substr(at, length);
  if ((static_cast<uint8_t>(field[0]) & 0x80) != 0) {
    uint64_t value = static_cast<uint8_t>(field[0]) & 0x3f;
    for (const char byte : field.substr(1)) {
      if (value >> 54 != 0) return std::nullopt;
      value = value << 8 | static_cast<uint8_t>(byte);
    }
    return static_cast<int64_t>(value);
  }
  int64_t value = 0;
  for (const char digit : field) {
    if (digit == ' ' || digit == '\0') continue;
    if (digit < '0' || digit > '7') return std::nullopt;
    value = value * 8 + (digit - '0');
  }
  return value;
}

/// True if the header's checksum is right. Tar has no other mark of validity.
bool has_tar_sum(std::string_view header) {
  int64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i)
    // The checksum field itself counts as blanks.
    sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(header[i]);
  return tar_number(header, 148, 8) == sum;
}

// An archive from elsewhere must not name files outside its folder.
bool leaves_folder(std::string_view name) {
  if (name.starts_with('/')) return true;
  while (!name.empty()) {
    const size_t end = std::min(name.find('/'), name.size());
    if (name.substr(0, end) == "..") return true;
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return false;
}

/// Lister of one archive.
class TarLister {
 public:
  TarLister(const ReadArchive& read, int64_t file_bytes, const std::string& file)
      : read_(read), file_bytes_(file_bytes), file_(file) {}

  std::vector<TarMember> list() {
    while (at_ < file_bytes_) {
      if (file_bytes_ - at_ < kTarBlock) refuse_tar("is truncated in a header");
      const std::string header(read_(at_, kTarBlock));
      // Two blocks of zeros end an archive; one is enough here.
      if (header.find_first_not_of('\0') == std::string::npos) return std::move(members_);
      take(header);
    }
    refuse_tar("is truncated: the blocks of zeros at its end are missing");
  }

 private:
  [[noreturn]] void refuse_tar(const std::string& what) const {
    refuse_file(file_, fmt::format("offset {}: {}", at_, what));
  }

  void take(const std::string& header) {
    if (!has_tar_sum(header))
      refuse_tar(
          "a header's checksum is wrong: the archive is damaged or not a tar file (is it "
          "compressed?)");
    int64_t num_bytes = tar_number(header, 124, 12).value_or(-1);
    const char kind = header[156];
    const bool is_file = kind == '0' || kind == '\0' || kind == '7';
    // A pax size replaces the field, which is too short for 8 GiB and more.
    if (is_file && pax_size_) num_bytes = *pax_size_;
    const int64_t begin = at_ + kTarBlock, room = file_bytes_ - begin;
    if (num_bytes < 0 || num_bytes > room)
      refuse_tar(fmt::format("a member of {} bytes, {} are left: the archive is truncated",
                             num_bytes, room));
    // 'x' is a pax header, 'L' a long name of GNU: both describe the next member.
    if (kind == 'x' || kind == 'L') {
      if (num_bytes > kMaxExtendedHeader) refuse_tar("an extended header of more than 1 MiB");
      const std::string text(read_(begin, num_bytes));
      kind == 'x' ? take_pax(text) : void(long_name_ = text.substr(0, text.find('\0')));
    } else {
      if (is_file) add(header, begin, num_bytes);
      long_name_.clear();
      pax_size_.reset();
    }
    // Members are padded to blocks of 512 bytes.
    at_ = begin + (num_bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
  }

  void add(std::string_view header, int64_t begin, int64_t num_bytes) {
    std::string name = long_name_;
    if (name.empty()) {
      // ustar splits long names into a prefix and a name.
      const std::string_view folder =
          header.substr(257, 5) == "ustar" && header[262] == '\0' ? tar_text(header, 345, 155) : "";
      name = fmt::format("{}{}{}", folder, folder.empty() ? "" : "/", tar_text(header, 0, 100));
    }
    if (leaves_folder(name))
      refuse_tar(fmt::format("the path of member '{}' is outside the archive", name));
    members_.push_back({std::move(name), begin, num_bytes});
  }

  /// Parses pax records "LENGTH KEY=VALUE\n". LENGTH counts the whole record.
  void take_pax(std::string_view text) {
    while (!text.empty()) {
      size_t length = 0;
      const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), length);
      const auto digits = static_cast<size_t>(end - text.data());
      if (fault != std::errc() || length > text.size() || length < digits + 2 || *end != ' ')
        refuse_tar("a malformed pax header");
      const std::string_view record = text.substr(digits + 1, length - digits - 2);
      text.remove_prefix(length);
      const size_t equals = record.find('=');
      if (equals == std::string_view::npos) refuse_tar("a malformed pax header");
      const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
      if (key == "path") long_name_ = value;
      if (key != "size") continue;
      int64_t size = 0;
      if (std::from_chars(value.data(), value.data() + value.size(), size).ec != std::errc())
        refuse_tar("a malformed pax header");
      pax_size_ = size;
    }
  }

  const ReadArchive& read_;
  int64_t file_bytes_;
  const std::string& file_;
  int64_t at_ = 0;
  std::string long_name_;
  std::optional<int64_t> pax_size_;
  std::vector<TarMember> members_;
};

}  // namespace

std::vector<TarMember> list_tar(const ReadArchive& read, int64_t file_bytes,
                                const std::string& file) {
  return TarLister(read, file_bytes, file).list();
}

}  // namespace lockstep::data
