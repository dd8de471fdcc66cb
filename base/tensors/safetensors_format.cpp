// The JSON is read by a SAX parser, so that a hostile header never becomes a tree in memory.
#include "base/tensors/safetensors_format.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

constexpr int64_t kMaxJsonBytes = int64_t{32} << 20;
constexpr int kMaxHeaderDepth = 4;
constexpr size_t kMaxHeaderTensors = 200'000, kMaxHeaderNameBytes = 1000, kMaxHeaderDims = 32;
constexpr uint64_t kMaxHeaderNumber = uint64_t{1} << 62;

// Names by NumberType.
constexpr std::array<std::string_view, 12> kSafetensorsTypes = {
    "U8", "I8", "U16", "I16", "U32", "I32", "I64", "F16", "BF16", "F32", "F64", "BOOL"};

/// Returns the type of "F32" and so on; nullopt for types that NumberType lacks.
std::optional<NumberType> safetensors_type(std::string_view name) {
  const auto found = std::find(kSafetensorsTypes.begin(), kSafetensorsTypes.end(), name);
  if (found == kSafetensorsTypes.end()) return std::nullopt;
  return static_cast<NumberType>(found - kSafetensorsTypes.begin());
}

[[noreturn]] void refuse_header(const std::string& why) { throw std::runtime_error(why); }

/// SAX handler that stores only what a header has, so that other JSON takes no memory.
/// nlohmann::json prescribes the names of the functions; returning false would end the parser.
class HeaderTaker {
 public:
  std::map<std::string, SafetensorsEntry> take() { return std::move(entries_); }

  bool null() { return take_other(); }
  bool boolean(bool /*value*/) { return take_other(); }
  bool number_integer(int64_t /*value*/) { return take_other(); }
  bool number_float(double /*value*/, const std::string& /*text*/) { return take_other(); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return take_other(); }

  bool number_unsigned(uint64_t value) {
    std::vector<int64_t>* const list = open_list();
    if (list == nullptr || value > kMaxHeaderNumber || list->size() == kMaxHeaderDims)
      return take_other();
    list->push_back(static_cast<int64_t>(value));
    return true;
  }
  bool string(std::string& text) {
    // "dtype" is expected at depth 2; other texts are ignored or refused.
    if (depth_ != 2 || entry_ == nullptr || member_ != "dtype") return take_other();
    entry_->dtype = text;
    return true;
  }
  bool key(std::string& name) {
    if (depth_ == 1)
      begin_entry(name);
    else if (depth_ == 2)
      begin_member(name);
    return true;
  }

  bool start_object(size_t /*size*/) { return go_down(depth_ < 2); }
  bool start_array(size_t /*size*/) {
    is_list_ = depth_ == 2;
    return go_down(is_list_);
  }
  bool end_object() { return --depth_, true; }
  bool end_array() {
    is_list_ = false;
    return --depth_, true;
  }
  static bool parse_error(size_t place, const std::string& /*token*/,
                          const nlohmann::json::exception& /*fault*/) {
    refuse_header(fmt::format(
        "its header is not JSON at byte {}; the file is truncated or has another format", place));
  }

 private:
  /// Enters a level. `is_expected`: a tensor has such a value at this depth.
  bool go_down(bool is_expected) {
    if (!is_expected) (void)take_other();
    if (++depth_ > kMaxHeaderDepth)
      refuse_header(fmt::format("its header is nested deeper than {}", kMaxHeaderDepth));
    return true;
  }

  void begin_entry(const std::string& name) {
    entry_ = nullptr;
    name_ = name;
    if (name == kSafetensorsMetadata) return;
    if (name.size() > kMaxHeaderNameBytes)
      refuse_header(fmt::format("the name of tensor '{:.40}...' is longer than {} bytes", name,
                                kMaxHeaderNameBytes));
    if (entries_.size() == kMaxHeaderTensors)
      refuse_header(fmt::format("its header has more than {} tensors", kMaxHeaderTensors));
    const auto [place, is_new] = entries_.emplace(name, SafetensorsEntry{});
    if (!is_new) refuse_header(fmt::format("its header has tensor '{}' twice", name));
    entry_ = &place->second;
  }

  void begin_member(const std::string& name) {
    member_ = name;
    if (entry_ == nullptr || name != "shape") return;
    if (entry_->has_shape) refuse_header(fmt::format("tensor '{}' has two shapes", name_));
    entry_->has_shape = true;
  }

  std::vector<int64_t>* open_list() {
    if (depth_ != 3 || entry_ == nullptr || !is_list_) return nullptr;
    if (member_ == "shape") return &entry_->shape;
    return member_ == "data_offsets" ? &entry_->data_offsets : nullptr;
  }

  /// Ignores a value. That is correct in the metadata and in unknown members.
  bool take_other() {
    if (depth_ == 0) refuse_header("its header is not a JSON object");
    if (depth_ == 1) refuse_header(fmt::format("'{}' in its header is not a JSON object", name_));
    if (entry_ != nullptr && (member_ == "shape" || member_ == "data_offsets"))
      refuse_header(fmt::format("tensor '{}' has no valid {}", name_, member_));
    return true;
  }

  std::map<std::string, SafetensorsEntry> entries_;
  SafetensorsEntry* entry_ = nullptr;  // entry being read; null: its content is skipped
  std::string name_, member_;
  int depth_ = 0;         // open levels: 1 in the header, 2 in a tensor, 3 in one of its lists
  bool is_list_ = false;  // type of the open level 3
};

}  // namespace

int64_t safetensors_data_begin(std::string_view bytes, int64_t file_bytes) {
  if (bytes.size() < static_cast<size_t>(kSafetensorsLengthBytes))
    refuse_header("it has fewer than 8 bytes");
  // Little-endian, also on big-endian machines.
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  if (length > static_cast<uint64_t>(std::min(kMaxJsonBytes, file_bytes - kSafetensorsLengthBytes)))
    refuse_header(
        fmt::format("its header has {} bytes, at most {} are supported; the file is truncated or "
                    "has another format",
                    length, kMaxJsonBytes));
  return kSafetensorsLengthBytes + static_cast<int64_t>(length);
}

std::map<std::string, SafetensorsEntry> read_safetensors_header(std::string_view json) {
  HeaderTaker taker;
  nlohmann::json::sax_parse(json, &taker);
  return taker.take();
}

SafetensorsPlace place_of(const SafetensorsEntry& entry, int64_t data_begin, int64_t file_bytes) {
  const std::optional<NumberType> type = safetensors_type(entry.dtype);
  if (!type) refuse_header(fmt::format("its type '{:.40}' is not supported", entry.dtype));
  if (!entry.has_shape) refuse_header("it has no shape");
  int64_t num_bytes = size_of(*type);
  // Shape and size come from a file, so the product is checked.
  for (const int64_t size : entry.shape)
    if (__builtin_mul_overflow(num_bytes, size, &num_bytes)) refuse_header("its shape is invalid");
  const std::vector<int64_t>& range = entry.data_offsets;
  if (range.size() != 2 || range[0] > range[1] || range[1] > file_bytes - data_begin ||
      range[1] - range[0] != num_bytes)
    refuse_header("its offsets do not match its shape or the file; the file is truncated");
  return {*type, data_begin + range[0], num_bytes};
}

}  // namespace lockstep
