#include "base/tensors/safetensors_header.h"

#include <map>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest_word.h"
#include "data/files/array_header.h"
#include "data/files/refuse.h"

namespace lockstep::data {
namespace {

using Entries = std::map<std::string, SafetensorsEntry>;

/// Returns the result of `read`. What it throws refuses the file.
template <typename Read>
auto or_refuse(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const std::runtime_error& fault) {
    refuse_file(where, fault.what());
  }
}

/// Returns the entry of a tensor; throws with the nearest names if there is none.
const SafetensorsEntry& entry_of(const Entries& entries, const std::string& name,
                                 const std::string& file) {
  if (const auto found = entries.find(name); found != entries.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : entries) names.push_back(known);
  refuse_file(file, fmt::format("no tensor '{}'{}; of its {} the nearest are {}", name,
                                did_you_mean(name, names), names.size(),
                                fmt::join(nearest_words(name, names), ", ")));
}

}  // namespace

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
