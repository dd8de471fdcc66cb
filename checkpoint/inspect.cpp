#include "checkpoint/inspect.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/bundle_reader.h"
#include "checkpoint/rank_faults.h"
#include "checkpoint/restore.h"
#include "checkpoint/save_files.h"
#include "checkpoint/state_names.h"
#include "checkpoint/tensor_type.h"
#include "checkpoint/value_text.h"
#include "checkpoint/verify.h"

namespace lockstep::checkpoint {
namespace {

/// A list of JSON values, one a line.
std::string json_lines(const std::vector<std::string>& items) {
  return items.empty() ? "[]" : fmt::format("[\n  {}\n]", fmt::join(items, ",\n  "));
}

std::string joined_shape(const BundleEntry& entry) {
  return fmt::format("[{}]", fmt::join(entry.shape, ", "));
}

void require_folder(const std::string& dir) {
  if (!std::filesystem::is_directory(dir))
    throw Error(ExitCode::kInputMissing, "checkpoint", dir + ": is no folder");
}

[[noreturn]] void throw_no_save(const std::string& dir, const std::vector<std::string>& defects) {
  if (defects.empty())
    throw Error(ExitCode::kInputMissing, "checkpoint",
                dir + ": holds no save (no file PREFIX-NUMBER.index)");
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: no save is complete:\n  {}", dir, fmt::join(defects, "\n  ")));
}

SaveName latest_or_throw(const std::string& dir) {
  require_folder(dir);
  std::vector<std::string> defects;
  const std::optional<SaveName> latest = latest_complete(dir, "", &defects);
  if (!latest) throw_no_save(dir, defects);
  for (const std::string& defect : defects) log::warning("checkpoint", "passed over: " + defect);
  return *latest;
}

/// One save of a folder, as `ls` shows it.
struct Summary {
  SaveName save;
  size_t num_tensors = 0;
  int32_t num_shards = 0;
  int64_t num_bytes = 0;
  std::string defect;
};

Summary summary_of(const SaveName& save) {
  Summary row{save, 0, 0, 0, quick_defect(save.prefix).value_or("")};
  if (!row.defect.empty()) return row;
  BundleReader reader(save.prefix);
  row.num_tensors = reader.index().entries.size();
  row.num_shards = reader.index().num_shards;
  for (int32_t shard = 0; shard < row.num_shards; ++shard)
    row.num_bytes += reader.shard_bytes(shard);
  return row;
}

std::string summary_json(const Summary& row) {
  return fmt::format(
      R"({{"prefix": {}, "number": {}, "tensors": {}, "shards": {}, "bytes": {}, "defect": {}}})",
      json_string(row.save.prefix), row.save.number, row.num_tensors, row.num_shards, row.num_bytes,
      row.defect.empty() ? "null" : json_string(row.defect));
}

std::string summary_line(const Summary& row) {
  return fmt::format("{:>10}  {:>7}  {:>6}  {:>14}  {}\n", row.save.number, row.num_tensors,
                     row.num_shards, row.num_bytes, row.defect.empty() ? "complete" : row.defect);
}

/// Digest and, where asked for, values of one tensor.
std::string content_json(BundleReader* reader, const std::string& name, bool values) {
  Sha256 digest;
  std::string list;
  if (reader->find(name)->dtype == kStringType) {
    std::vector<std::string> texts = reader->read_strings(name);
    for (const std::string& text : texts) digest.add(text);
    std::transform(texts.begin(), texts.end(), texts.begin(),
                   [](const std::string& text) { return json_string(text); });
    if (values) list = fmt::format("[{}]", fmt::join(texts, ", "));
  } else {
    const at::Tensor tensor = reader->read(name);
    digest.add(tensor);
    if (values) list = json_values(tensor);
  }
  return fmt::format(R"("sha256": "{}"{})", digest.hex(), values ? R"(, "values": )" + list : "");
}

std::string tensor_json(BundleReader* reader, const std::string& name, const BundleEntry& entry,
                        bool values) {
  const std::optional<std::string> key = state_key(name);
  return fmt::format(
      R"({{"name": {}, "key": {}, "dtype": "{}", "shape": {}, "shard": {}, "offset": {}, "size": {}, )"
      R"("crc32c": "{:08x}", {}}})",
      json_string(name), key ? json_string(*key) : "null", type_name(entry.dtype),
      joined_shape(entry), entry.shard, entry.offset, entry.num_bytes, entry.masked_crc,
      content_json(reader, name, values));
}

std::string show_json(BundleReader* reader, bool values) {
  std::vector<std::string> tensors;
  for (const auto& [name, entry] : reader->index().entries)
    tensors.push_back(tensor_json(reader, name, entry, values));
  return fmt::format("{{\"prefix\": {}, \"num_shards\": {}, \"tensors\": {}}}\n",
                     json_string(reader->prefix()), reader->index().num_shards,
                     json_lines(tensors));
}

std::string show_table(const BundleReader& reader) {
  size_t width = 4;
  for (const auto& [name, entry] : reader.index().entries)
    width = std::max(width, state_key(name).value_or(name).size());
  std::string text = fmt::format(
      "{}, {} shards\n{:<{}}  {:<10}  {:<20}  {:>5}  {:>12}  {:>12}  crc32c\n", reader.prefix(),
      reader.index().num_shards, "key", width, "dtype", "shape", "shard", "offset", "size");
  for (const auto& [name, entry] : reader.index().entries)
    text += fmt::format("{:<{}}  {:<10}  {:<20}  {:>5}  {:>12}  {:>12}  {:08x}\n",
                        state_key(name).value_or(name), width, type_name(entry.dtype),
                        joined_shape(entry), entry.shard, entry.offset, entry.num_bytes,
                        entry.masked_crc);
  return text;
}

std::vector<SaveName> saves_at(const std::string& where) {
  if (!std::filesystem::is_directory(where)) return {{where, 0}};
  std::vector<SaveName> saves = find_saves(where);
  if (saves.empty()) throw_no_save(where, {});
  return saves;
}

}  // namespace

std::string save_at(const std::string& where) {
  return std::filesystem::is_directory(where) ? latest_or_throw(where).prefix : where;
}

Answer list_saves(const std::string& dir, const InspectOptions& options) {
  require_folder(dir);
  std::vector<std::string> rows;
  std::string table =
      fmt::format("{:>10}  {:>7}  {:>6}  {:>14}  state\n", "number", "tensors", "shards", "bytes");
  for (const SaveName& save : find_saves(dir)) {
    const Summary row = summary_of(save);
    rows.push_back(summary_json(row));
    table += summary_line(row);
  }
  if (options.json) return {json_lines(rows) + "\n"};
  return {rows.empty() ? dir + ": no saves\n" : table};
}

Answer show_save(const std::string& where, const InspectOptions& options) {
  BundleReader reader(save_at(where));
  return {options.json ? show_json(&reader, options.values) : show_table(reader)};
}

Answer verify_saves(const std::string& where, const InspectOptions& options) {
  Answer answer;
  std::vector<std::string> rows;
  for (const SaveName& save : saves_at(where)) {
    std::vector<std::string> defects = verify(save.prefix);
    answer.ok = answer.ok && defects.empty();
    answer.text += defects.empty() ? save.prefix + ": sound\n" : "";
    for (std::string& defect : defects) {
      answer.text += defect + "\n";
      defect = json_string(defect);
    }
    rows.push_back(fmt::format(R"({{"prefix": {}, "defects": [{}]}})", json_string(save.prefix),
                               fmt::join(defects, ", ")));
  }
  if (options.json) answer.text = json_lines(rows) + "\n";
  return answer;
}

Answer latest_save(const std::string& dir, const InspectOptions& options) {
  const SaveName latest = latest_or_throw(dir);
  if (!options.json) return {latest.prefix + "\n"};
  return {fmt::format("{{\"prefix\": {}, \"number\": {}}}\n", json_string(latest.prefix),
                      latest.number)};
}

}  // namespace lockstep::checkpoint
