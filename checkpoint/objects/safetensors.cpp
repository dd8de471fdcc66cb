// One temporary file and one rename, so that a reader never sees half a file.
#include "checkpoint/objects/safetensors.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/tensors/safetensors_header.h"
#include "checkpoint/bundle/number_types.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

std::string_view dtype_name(at::ScalarType type) {
  const std::optional<NumberType> number = number_type_of(type);
  check(number.has_value(), "safetensors has no such type");
  return safetensors_type_name(*number);
}

std::string header_of(const std::vector<SafetensorsItem>& items,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header[std::string(kSafetensorsMetadata)] = metadata;
  int64_t offset = 0;
  for (const SafetensorsItem& item : items) {
    check(!header.contains(item.name), "a tensor's name stands once in a file");
    const auto num_bytes = static_cast<int64_t>(item.tensor.nbytes());
    header[item.name] = {{"dtype", dtype_name(item.tensor.scalar_type())},
                         {"shape", item.tensor.sizes().vec()},
                         {"data_offsets", {offset, offset + num_bytes}}};
    offset += num_bytes;
  }
  // Names need not be UTF-8; `replace` keeps the JSON valid.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

void write_file(const std::filesystem::path& path, const std::string& header,
                const std::vector<SafetensorsItem>& items) {
  files::Writer writer(path);
  const auto length = static_cast<uint64_t>(header.size());
  writer.append({reinterpret_cast<const char*>(&length), sizeof length});
  writer.append(header);
  for (const SafetensorsItem& item : items) {
    // One tensor at a time: a model on a GPU never needs a second copy of its own size here.
    const at::Tensor values = item.tensor.detach().cpu().contiguous();
    writer.append(bytes_of(values));
  }
  writer.sync();
  writer.close();
}

}  // namespace

int64_t write_safetensors(const std::filesystem::path& path,
                          const std::vector<SafetensorsItem>& items,
                          const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> sorted = items;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.tensor.element_size() > b.tensor.element_size();
  });
  const std::string header = header_of(sorted, metadata);
  const std::filesystem::path temporary = path.string() + ".tmp";
  try {
    write_file(temporary, header, sorted);
    files::rename_file(temporary, path);
  } catch (const Error&) {
    files::remove_file(temporary);
    throw;
  }
  files::sync_folder(path.parent_path());
  return static_cast<int64_t>(std::filesystem::file_size(path));
}

}  // namespace lockstep::checkpoint
