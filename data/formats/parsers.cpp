// Parsers of bytes: the headers of IDX, .npy and safetensors files, CSV, tf.train.Example, tar.
#include "data/formats/parsers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/tensors/safetensors_format.h"
#include "data/formats/tf_example.pb.h"

namespace lockstep::data {
namespace {

constexpr uint8_t kIdxUint8 = 8;

uint8_t idx_byte(std::string_view bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

/// Reads a big-endian number of 4 bytes.
int64_t big_endian32(std::string_view bytes, size_t at) {
  int64_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | idx_byte(bytes, at + i);
  return value;
}

}  // namespace

IdxHeader parse_idx_header(std::string_view bytes, int64_t file_bytes, const std::string& file) {
  if (bytes.size() < 4 || idx_byte(bytes, 0) != 0 || idx_byte(bytes, 1) != 0)
    refuse_file(file,
                "offset 0: is not an IDX file, which begins with two zero bytes (is it still "
                "compressed? `gunzip` it)");
  if (idx_byte(bytes, 2) != kIdxUint8)
    refuse_file(file,
                fmt::format("offset 2: type 0x{:02x} of values; only uint8 (0x08) is supported",
                            idx_byte(bytes, 2)));
  const size_t num_axes = idx_byte(bytes, 3);
  if (num_axes > 8) refuse_file(file, fmt::format("offset 3: {} axes", num_axes));
  if (bytes.size() < 4 + 4 * num_axes) refuse_file(file, "is truncated in its header");
  IdxHeader header{{}, static_cast<int64_t>(4 + 4 * num_axes)};
  int64_t num_values = 1;
  for (size_t axis = 0; axis < num_axes; ++axis) {
    header.sizes.push_back(big_endian32(bytes, 4 + 4 * axis));
    if (header.sizes.back() == 0) refuse_file(file, fmt::format("axis {} is of size 0", axis));
    if (__builtin_mul_overflow(num_values, header.sizes.back(), &num_values))
      refuse_file(file, "its sizes are invalid");
  }
  if (file_bytes - header.num_bytes != num_values)
    refuse_file(
        file, fmt::format(
                  "has {} bytes after its header, expected {}: it is truncated or not an IDX file",
                  file_bytes - header.num_bytes, num_values));
  return header;
}

// The header of .npy is a Python dict as text. Only the three keys that NumPy writes are searched;
// nothing is evaluated.

namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";

// Types as in numpy.dtype.descr: byte order, kind, bytes per element.
constexpr std::array<std::pair<std::string_view, NumberType>, 11> kNpyTypes{
    {{"|u1", NumberType::kU8},
     {"|i1", NumberType::kI8},
     {"|b1", NumberType::kBool},
     {"<u2", NumberType::kU16},
     {"<i2", NumberType::kI16},
     {"<u4", NumberType::kU32},
     {"<i4", NumberType::kI32},
     {"<i8", NumberType::kI64},
     {"<f2", NumberType::kF16},
     {"<f4", NumberType::kF32},
     {"<f8", NumberType::kF64}}};

/// Returns the text after 'key': in the text of a Python dict; nullopt without this key.
std::optional<std::string_view> value_behind(std::string_view dict, std::string_view key) {
  const size_t at = dict.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) return std::nullopt;
  dict.remove_prefix(at + key.size() + 3);
  dict.remove_prefix(std::min(dict.find_first_not_of(' '), dict.size()));
  return dict;
}

/// Converts a type name; throws with a hint for types that are not supported.
NumberType npy_type(std::string_view value, const std::string& file) {
  for (const auto& [name, type] : kNpyTypes)
    if (value.starts_with(fmt::format("'{}'", name))) return type;
  if (value.starts_with("'|O'"))
    refuse_file(file,
                "contains Python objects, which only Python can read; save an array of numbers");
  if (value.starts_with("'>"))
    refuse_file(file,
                "contains big-endian numbers; save array.astype(array.dtype.newbyteorder('<'))");
  refuse_file(file,
              fmt::format("its type {} is not supported; save it as uint8, an integer or float32",
                          value.substr(0, value.find_first_of(",}"))));
}

/// Parses a tuple such as "(60000, 28, 28)" or "(5,)".
std::vector<int64_t> npy_shape(std::string_view value, const std::string& file) {
  std::vector<int64_t> shape;
  if (!value.starts_with('(')) refuse_file(file, "its header has no shape");
  value.remove_prefix(1);
  while (true) {
    value.remove_prefix(std::min(value.find_first_not_of(" ,"), value.size()));
    if (value.starts_with(')')) return shape;
    int64_t size = 0;
    const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (fault != std::errc() || size < 0 || shape.size() == 32)
      refuse_file(file, "its header has no valid shape");
    shape.push_back(size);
    value.remove_prefix(static_cast<size_t>(end - value.data()));
  }
}

struct NpyText {
  std::string_view dict;
  int64_t end;
};

/// Returns the header's dict after checking magic and version.
NpyText npy_text(std::string_view bytes, const std::string& file) {
  if (bytes.size() < 12 || !bytes.starts_with(kNpyMagic))
    refuse_file(file, "offset 0: is not an .npy file");
  const auto byte = [&](size_t at) { return size_t{static_cast<uint8_t>(bytes[at])}; };
  const size_t version = byte(6);
  if (version < 1 || version > 3)
    refuse_file(file, fmt::format("offset 6: version {} of .npy; 1 to 3 are supported", version));
  // Version 1 has a length of 2 bytes, versions 2 and 3 have one of 4 (numpy.lib.format).
  const size_t begin = version == 1 ? 10 : 12;
  const size_t length =
      byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > bytes.size() - begin)
    refuse_file(file, "is truncated in its header, or the header is too long");
  return {bytes.substr(begin, length), static_cast<int64_t>(begin + length)};
}

}  // namespace

ArrayHeader parse_npy_header(std::string_view bytes, int64_t file_bytes, const std::string& file) {
  const NpyText text = npy_text(bytes, file);
  const auto type = value_behind(text.dict, "descr");
  const auto order = value_behind(text.dict, "fortran_order");
  const auto shape = value_behind(text.dict, "shape");
  if (!type || !order || !shape) refuse_file(file, "its header lacks type, order or shape");
  ArrayHeader header{npy_type(*type, file), npy_shape(*shape, file), text.end, 0};
  if (order->starts_with("True") && header.shape.size() > 1)
    refuse_file(file, "is in Fortran order; save numpy.ascontiguousarray(array)");
  header.num_bytes = size_of(header.type);
  for (const int64_t size : header.shape)
    if (__builtin_mul_overflow(header.num_bytes, size, &header.num_bytes))
      refuse_file(file, "its shape is invalid");
  if (file_bytes - header.offset < header.num_bytes)
    refuse_file(file, fmt::format("is truncated: {} bytes after the header, its shape needs {}",
                                  file_bytes - header.offset, header.num_bytes));
  return header;
}

using Entries = std::map<std::string, SafetensorsEntry>;

/// Returns the result of `read`. What it throws refuses the file.
template <typename Read>
static auto or_refuse(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const std::runtime_error& fault) {
    refuse_file(where, fault.what());
  }
}

/// Returns the entry of a tensor; throws with the nearest names if there is none.
static const SafetensorsEntry& entry_of(const Entries& entries, const std::string& name,
                                        const std::string& file) {
  if (const auto found = entries.find(name); found != entries.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : entries) names.push_back(known);
  refuse_file(
      file, fmt::format("no tensor '{}'{}; nearest of its {}: {}", name, did_you_mean(name, names),
                        names.size(), fmt::join(nearest_words(name, names), ", ")));
}

int64_t safetensors_header_end(std::string_view bytes, int64_t file_bytes,
                               const std::string& file) {
  return or_refuse(file, [&] { return safetensors_data_begin(bytes, file_bytes); });
}

ArrayHeader parse_safetensors_header(std::string_view bytes, int64_t file_bytes,
                                     const std::string& name, const std::string& file) {
  const Entries entries = or_refuse(file, [&] {
    return read_safetensors_header(bytes.substr(static_cast<size_t>(kSafetensorsLengthBytes)));
  });
  const SafetensorsEntry& entry = entry_of(entries, name, file);
  const SafetensorsPlace place = or_refuse(fmt::format("{}: tensor '{}'", file, name), [&] {
    return place_of(entry, static_cast<int64_t>(bytes.size()), file_bytes);
  });
  return {place.type, entry.shape, place.offset, place.num_bytes};
}

// CSV by RFC 4180.

namespace {

class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& file) : rest_(text), file_(file) {
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);  // byte order mark
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> all;
    while (!rest_.empty()) {
      if (take_line_end()) continue;
      all.push_back(row());
    }
    return all;
  }

 private:
  CsvRow row() {
    CsvRow row{line_, {}};
    while (true) {
      row.fields.push_back(rest_.starts_with('"') ? quoted() : plain());
      if (rest_.starts_with(',')) {
        rest_.remove_prefix(1);
        continue;
      }
      if (!rest_.empty() && !take_line_end())
        refuse_file(fmt::format("{}:{}", file_, line_), "text after a closing quote");
      return row;
    }
  }

  std::string plain() {
    const size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
    std::string_view field = rest_.substr(0, end);
    rest_.remove_prefix(end);
    // The \r belongs to the line's end, not to the field.
    if (field.ends_with('\r') && !rest_.starts_with(',')) field.remove_suffix(1);
    return std::string(field);
  }

  std::string quoted() {
    const int64_t first_line = line_;
    rest_.remove_prefix(1);
    std::string field;
    while (true) {
      const size_t quote = rest_.find('"');
      if (quote == std::string_view::npos)
        refuse_file(fmt::format("{}:{}", file_, first_line),
                    "a quote that opens here is never closed");
      field += rest_.substr(0, quote);
      // Error messages need the line number, and a quoted field may span lines.
      line_ += std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(quote), '\n');
      rest_.remove_prefix(quote + 1);
      // Two quotes inside a quoted field mean one quote.
      if (!rest_.starts_with('"')) return field;
      field += '"';
      rest_.remove_prefix(1);
    }
  }

  bool take_line_end() {
    const size_t length = rest_.starts_with("\r\n") ? 2 : rest_.starts_with('\n') ? 1 : 0;
    rest_.remove_prefix(length);
    if (length > 0) ++line_;
    return length > 0;
  }

  std::string_view rest_;
  const std::string& file_;
  int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& file) {
  return CsvParser(text, file).rows();
}

namespace {

[[noreturn]] void refuse_example(const char* what) {
  throw Error(ExitCode::kBadData, "data", std::string("its tf.train.Example ") + what);
}

}  // namespace

pb::Example parse_example(std::string_view bytes) {
  pb::Example example;
  if (bytes.size() > INT32_MAX) refuse_example("has more than 2 GiB");
  if (!example.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    refuse_example("is truncated, damaged or invalid");
  return example;
}

pb::Feature* find_feature(std::string_view name, pb::Example* example) {
  pb::Feature* found = nullptr;
  // A later entry of a map replaces an earlier one, as protobuf requires.
  for (pb::Features::Entry& entry : *example->mutable_features()->mutable_feature())
    if (entry.key() == name) found = entry.mutable_value();
  return found != nullptr && found->kind_case() != pb::Feature::KIND_NOT_SET ? found : nullptr;
}

std::string only_bytes(pb::Feature* feature) {
  pb::BytesList& list = *feature->mutable_bytes_list();
  if (list.value_size() > 1) refuse_example("has several values, expected one");
  if (list.value_size() == 0) refuse_example("has an empty list, expected one value");
  return std::move(*list.mutable_value(0));
}

// Tar. Offsets in a header are those of the ustar format (POSIX pax, "ustar Interchange Format").

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
