// `lockstep ckpt ls`, `verify`, `latest` and `show`.
#include "checkpoint/tools/inspect.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include <ATen/ops/count_nonzero.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/format/tensor_slice.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/tools/tensor_values.h"

namespace lockstep::checkpoint {
namespace {

/// Added where a folder of this host has no checkpoint.
constexpr const char* kMaybeInStore =
    "; with an address in checkpoint.prefix they are in the store: name its folder, s3://...";

/// Throws the error for a folder without a complete checkpoint.
[[noreturn]] void throw_no_save(const std::string& dir, const std::vector<std::string>& defects) {
  if (defects.empty())
    throw Error(ExitCode::kInputMissing, "checkpoint",
                fmt::format("{}: contains no checkpoint (no file PREFIX-NUMBER.index{})", dir,
                            files::is_remote(dir) ? "" : kMaybeInStore));
  throw Error(ExitCode::kBadData, "checkpoint",
              fmt::format("{}: no complete checkpoint:\n  {}", dir, fmt::join(defects, "\n  ")));
}

SaveName latest_or_throw(const std::string& dir) {
  require_folder(dir);
  // latest_checkpoint() may return an incomplete one if there is no other.
  const std::optional<std::string> latest = latest_checkpoint(dir);
  if (latest && !quick_check(*latest)) {
    const auto parts = parse_save_name(*latest);
    return {*latest, parts ? parts->number : -1};
  }
  std::vector<std::string> defects;
  for (const SaveName& save : newest_first(dir, ""))
    if (const auto defect = quick_check(save.prefix)) defects.push_back(*defect);
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
  if (!files::is_folder(where)) return {{where, 0}};
  finish_replacements(where);
  std::vector<SaveName> saves = find_saves(where);
  if (saves.empty()) throw_no_save(where, {});
  return saves;
}

}  // namespace

std::string save_at(const std::string& where) {
  if (!files::is_folder(where)) return where;
  const std::filesystem::path of_a_run = std::filesystem::path(where) / "checkpoints";
  const bool is_run = find_saves(where).empty() && files::is_folder(of_a_run);
  return latest_or_throw(is_run ? of_a_run.string() : where).prefix;
}

Answer list_saves(const std::string& dir, const InspectOptions& options) {
  require_folder(dir);
  finish_replacements(dir);
  std::vector<std::string> rows;
  std::string table = fmt::format("{:>10}  {:>7}  {:>6}  {:>14}  {:>14}  state\n", "number",
                                  "tensors", "shards", "dense bytes", "stored bytes");
  for (const SaveName& save : find_saves(dir)) {
    const Summary row = summary_of(save);
    rows.push_back(summary_json(row));
    table += summary_line(row);
  }
  if (options.json) return {json_lines(rows) + "\n"};
  if (!rows.empty()) return {table};
  return {fmt::format("{}: no checkpoints{}\n", dir, files::is_remote(dir) ? "" : kMaybeInStore)};
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

// `lockstep ckpt show`: tables and JSON of one checkpoint's tensors.

static std::string joined(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Returns the masked crc of a tensor's bytes in row-major order. It is joined from the slices'
/// crcs, so it does not depend on the cuts. nullopt unless the slices are consecutive runs.
static std::optional<uint32_t> crc_of(const BundleEntry& entry) {
  if (!entry.is_sliced()) return entry.masked_crc;
  uint32_t crc = 0;
  int64_t at_E = 0;
  for (const BundleSlice& slice : entry.slices) {
    const int64_t num_elements = slice.box.num_elements();
    if (run_elements(slice.box, entry.shape) != num_elements ||
        tensor_element(slice.box, entry.shape, 0) != at_E)
      return std::nullopt;
    crc = crc32c_joined(crc, unmasked_crc32c(slice.masked_crc), slice.num_bytes);
    at_E += num_elements;
  }
  return masked_crc32c(crc);
}

/// Returns digest and, if requested, values of one tensor as JSON.
static std::string content_json(DenseView* view, const std::string& name, bool values) {
  if (!is_known_type(view->find(name)->dtype))
    return fmt::format(R"("sha256": null{})", values ? R"(, "values": null)" : "");
  Sha256 digest;
  std::string list, sparsity;
  if (view->is_text(name)) {
    std::vector<std::string> texts = view->read_texts(name);
    for (const std::string& text : texts) digest.add(text);
    std::ranges::transform(texts, texts.begin(), json_string);
    if (values) list = fmt::format("[{}]", fmt::join(texts, ", "));
  } else {
    const at::Tensor tensor = view->read(name);
    digest.add(tensor);
    if (tensor.is_floating_point() && tensor.numel() > 0)
      sparsity =
          fmt::format(R"("sparsity": {:.6g}, )", 1 - at::count_nonzero(tensor).item<double>() /
                                                         static_cast<double>(tensor.numel()));
    if (values) list = json_values(tensor);
  }
  return fmt::format(R"({}"sha256": "{}"{})", sparsity, digest.hex(),
                     values ? R"(, "values": )" + list : "");
}

static std::string slice_json(const BundlePlace& place, const TensorBox& box) {
  return fmt::format(
      R"({{"box": "{}", "shard": {}, "offset": {}, "size": {}, "crc32c": "{:08x}"}})",
      box_text(box), place.shard, place.offset, place.num_bytes, place.masked_crc);
}

/// Returns an empty text for a tensor with one place.
static std::string slices_json(const DenseTensor& tensor) {
  const BundleEntry& entry = *tensor.entry;
  std::vector<std::string> slices;
  if (!entry.is_sliced())
    slices.push_back(slice_json(entry, {std::vector<int64_t>(entry.shape.size()), entry.shape}));
  for (const BundleSlice& slice : entry.slices) slices.push_back(slice_json(slice, slice.box));
  std::string text;
  if (tensor.is_sparse()) text = fmt::format(R"("mask": {}, )", json_string(tensor.mask_name));
  if (tensor.is_sparse() || entry.is_sliced())
    text += fmt::format(R"("slices": [{}], )", fmt::join(slices, ", "));
  return text;
}

static std::string tensor_json(DenseView* view, const std::string& name, bool values) {
  const DenseTensor tensor = view->find(name).value();
  const std::optional<std::string> key = state_key(name);
  const std::optional<uint32_t> crc = crc_of(*tensor.entry);
  const bool is_whole = !tensor.is_sparse() && !tensor.entry->is_sliced();
  return fmt::format(
      R"({{"name": {}, "key": {}, "dtype": "{}", "shape": {}, "shard": {}, "offset": {}, "size": {}, )"
      R"("crc32c": {}, "stored_bytes": {}, {}{}}})",
      json_string(name), key ? json_string(*key) : "null", type_name(tensor.dtype),
      joined(tensor.shape), is_whole ? std::to_string(tensor.entry->shard) : "null",
      is_whole ? std::to_string(tensor.entry->offset) : "null", tensor.dense_bytes,
      crc ? fmt::format("\"{:08x}\"", *crc) : "null", tensor.stored_bytes, slices_json(tensor),
      content_json(view, name, values));
}

/// Returns the sizes of the whole checkpoint: dense and stored bytes.
static std::pair<int64_t, int64_t> total_bytes(const DenseView& view) {
  std::pair<int64_t, int64_t> sum;
  for (const std::string& name : view.names()) {
    const DenseTensor tensor = view.find(name).value();
    sum.first += tensor.dense_bytes;
    sum.second += tensor.stored_bytes;
  }
  return sum;
}

static std::string show_json(const BundleReader& reader, DenseView* view, bool values) {
  std::vector<std::string> tensors;
  for (const std::string& name : view->names()) tensors.push_back(tensor_json(view, name, values));
  const auto [dense, stored] = total_bytes(*view);
  return fmt::format(
      "{{\"prefix\": {}, \"num_shards\": {}, \"dense_bytes\": {}, \"stored_bytes\": {}, "
      "\"tensors\": {}}}\n",
      json_string(reader.prefix()), reader.index().num_shards, dense, stored, json_lines(tensors));
}

/// Returns "shard 1 at 4096" or "3 slices: 2 in shard 0, 1 in shard 1", and how much is pruned.
static std::string place_text(const DenseTensor& tensor) {
  const BundleEntry& entry = *tensor.entry;
  std::string text = fmt::format("shard {} at {}", entry.shard, entry.offset);
  if (entry.is_sliced()) {
    std::map<int32_t, int> by_shard;
    for (const BundleSlice& slice : entry.slices) ++by_shard[slice.shard];
    std::vector<std::string> counts;
    for (const auto& [shard, count] : by_shard)
      counts.push_back(fmt::format("{} in shard {}", count, shard));
    text = fmt::format("{} slices: {}", entry.slices.size(), fmt::join(counts, ", "));
  }
  if (!tensor.is_sparse()) return text;
  const int64_t num_elements = SparseForm{tensor.shape, ""}.num_elements();
  const double kept = static_cast<double>(entry.num_elements());
  return fmt::format("{}; {:.2f} % pruned", text,
                     num_elements == 0 ? 0 : 100 - 100 * kept / static_cast<double>(num_elements));
}

static std::string table_line(const DenseView& view, const std::string& name, size_t width) {
  const DenseTensor tensor = view.find(name).value();
  const std::optional<uint32_t> crc = crc_of(*tensor.entry);
  return fmt::format("{:<{}}  {:<10}  {:<20}  {:>12}  {:>12}  {:<24}  {}\n",
                     state_key(name).value_or(name), width, type_name(tensor.dtype),
                     joined(tensor.shape), tensor.dense_bytes, tensor.stored_bytes,
                     place_text(tensor), crc ? fmt::format("{:08x}", *crc) : "-");
}

static std::string show_table(const BundleReader& reader, const DenseView& view) {
  size_t width = 4;
  for (const std::string& name : view.names())
    width = std::max(width, state_key(name).value_or(name).size());
  const auto [dense, stored] = total_bytes(view);
  std::string text = fmt::format(
      "{}, {} shards, {} bytes, dense {} bytes\n{:<{}}  {:<10}  {:<20}  {:>12}  {:>12}  {:<24}  "
      "crc32c\n",
      reader.prefix(), reader.index().num_shards, stored, dense, "key", width, "dtype", "shape",
      "dense bytes", "stored bytes", "place");
  for (const std::string& name : view.names()) text += table_line(view, name, width);
  return text;
}

Answer show_save(const std::string& where, const InspectOptions& options) {
  BundleReader reader(save_at(where));
  DenseView view(&reader);
  return {options.json ? show_json(reader, &view, options.values) : show_table(reader, view)};
}

}  // namespace lockstep::checkpoint
