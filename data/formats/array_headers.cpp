// Parsers of the headers of IDX, .npy and safetensors files.
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/tensors/safetensors_format.h"
#include "data/formats/parsers.h"

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

struct NpyType {
  std::string_view name;
  NumberType type;
};

// Types as in numpy.dtype.descr: byte order, kind, bytes per element.
constexpr std::array<NpyType, 11> kNpyTypes{{{"|u1", NumberType::kU8},
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
  for (const NpyType& known : kNpyTypes)
    if (value.starts_with(fmt::format("'{}'", known.name))) return known.type;
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

}  // namespace lockstep::data
