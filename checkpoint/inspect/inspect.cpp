// `lockstep ckpt ls`, `verify` and `latest`; `show` is in inspect_show.cpp.
#include "checkpoint/inspect/inspect.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/files/rank_faults.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/inspect/value_text.h"
#include "checkpoint/reader/bundle_reader.h"
#include "checkpoint/reader/dense_view.h"
#include "checkpoint/reader/verify.h"
#include "checkpoint/restore/latest_checkpoint.h"
#include "checkpoint/restore/restore.h"

namespace lockstep::checkpoint {
namespace {

void require_folder(const std::string& dir) {
  if (!std::filesystem::is_directory(dir))
    throw Error(ExitCode::kInputMissing, "checkpoint", dir + ": is no folder");
}

/// Throws the error for a folder without a complete checkpoint.
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
  // latest_checkpoint() may return an incomplete one if there is no other.
  const std::optional<std::string> latest = latest_checkpoint(dir);
  if (latest && !quick_check(*latest)) {
    const auto parts = parse_file_name(index_path(std::filesystem::path(*latest).filename()));
    return {*latest, parts ? parts->number : -1};
  }
  (void)latest_complete(dir, "", &defects);
  throw_no_save(dir, defects);
}

/// One checkpoint of a folder, as `ls` shows it.
struct Summary {
  SaveName save;
  size_t num_tensors = 0;
  int32_t num_shards = 0;
  int64_t num_bytes = 0;    ///< of the shards
  int64_t dense_bytes = 0;  ///< of all tensors with every element stored
  std::string defect;
};

void add_facts(Summary* row) {
  BundleReader reader(row->save.prefix);
  const DenseView view(&reader);
  row->num_tensors = view.names().size();
  row->num_shards = reader.index().num_shards;
  for (int32_t shard = 0; shard < row->num_shards; ++shard)
    row->num_bytes += reader.shard_bytes(shard);
  for (const std::string& name : view.names()) row->dense_bytes += view.find(name)->dense_bytes;
}

/// Returns a row for a checkpoint. A damaged one is listed with its defect.
Summary summary_of(const SaveName& save) {
  Summary row{.save = save, .defect = quick_check(save.prefix).value_or("")};
  if (!row.defect.empty()) return row;
  if (const auto fault = fault_of([&] { add_facts(&row); })) row.defect = plain_text(*fault);
  return row;
}

std::string summary_json(const Summary& row) {
  return fmt::format(R"({{"prefix": {}, "number": {}, "tensors": {}, "shards": {}, "bytes": {}, )"
                     R"("dense_bytes": {}, "defect": {}}})",
                     json_string(row.save.prefix), row.save.number, row.num_tensors, row.num_shards,
                     row.num_bytes, row.dense_bytes,
                     row.defect.empty() ? "null" : json_string(row.defect));
}

std::string summary_line(const Summary& row) {
  return fmt::format("{:>10}  {:>7}  {:>6}  {:>14}  {:>14}  {}\n", row.save.number, row.num_tensors,
                     row.num_shards, row.dense_bytes, row.num_bytes,
                     row.defect.empty() ? "complete" : row.defect);
}

std::vector<SaveName> saves_at(const std::string& where) {
  if (!std::filesystem::is_directory(where)) return {{where, 0}};
  std::vector<SaveName> saves = find_saves(where);
  if (saves.empty()) throw_no_save(where, {});
  return saves;
}

}  // namespace

std::string save_at(const std::string& where) {
  if (!std::filesystem::is_directory(where)) return where;
  const std::filesystem::path of_a_run = std::filesystem::path(where) / "checkpoints";
  const bool is_run = find_saves(where).empty() && std::filesystem::is_directory(of_a_run);
  return latest_or_throw(is_run ? of_a_run.string() : where).prefix;
}

Answer list_saves(const std::string& dir, const InspectOptions& options) {
  require_folder(dir);
  std::vector<std::string> rows;
  std::string table = fmt::format("{:>10}  {:>7}  {:>6}  {:>14}  {:>14}  state\n", "number",
                                  "tensors", "shards", "dense bytes", "stored bytes");
  for (const SaveName& save : find_saves(dir)) {
    const Summary row = summary_of(save);
    rows.push_back(summary_json(row));
    table += summary_line(row);
  }
  if (options.json) return {json_lines(rows) + "\n"};
  return {rows.empty() ? dir + ": no saves\n" : table};
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
