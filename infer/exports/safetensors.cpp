#include "infer/exports/formats.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/import/safetensors.h"
#include "daemon/config/program.h"
#include "infer/exports/portable_network.h"

// Collects the tensors and counts what quantization changes. The table of counts shows that masked
// weights are exactly zero in the file.
namespace lockstep::exports {
namespace {

constexpr const char* kFormatVersion = "1";

/// Counts of one weight tensor.
struct LayerRow {
  std::string name;
  std::string stored_as;
  int64_t num_weights = 0;
  int64_t num_masked = 0;
  int64_t num_masked_nonzero_before = 0, num_masked_nonzero_after = 0;
  int64_t num_rounded_to_zero = 0;  ///< kept weights that were not zero and were rounded to zero
};

void add(const LayerRow& row, LayerRow* total) {
  total->num_weights += row.num_weights;
  total->num_masked += row.num_masked;
  total->num_masked_nonzero_before += row.num_masked_nonzero_before;
  total->num_masked_nonzero_after += row.num_masked_nonzero_after;
  total->num_rounded_to_zero += row.num_rounded_to_zero;
}

/// Content of the file, and the counts.
struct Export {
  std::vector<checkpoint::SafetensorsItem> items;
  std::vector<LayerRow> rows;
};

int64_t num_true(const at::Tensor& flags) { return flags.sum().item<int64_t>(); }

/// Counts the elements of one weight. `stored`: the weight as it will be stored.
LayerRow count(const std::string& name, const CheckpointModel::Param& param,
               const at::Tensor& stored) {
  const at::Tensor before = param.values.ne(0), after = stored.ne(0);
  return {.name = name,
          .stored_as = stored.scalar_type() == at::kChar ? "int8" : "float32",
          .num_weights = param.values.numel(),
          .num_masked = num_true(param.pruned),
          .num_masked_nonzero_before = num_true(param.pruned.logical_and(before)),
          .num_masked_nonzero_after = num_true(param.pruned.logical_and(after)),
          .num_rounded_to_zero = num_true(before.logical_and(after.logical_not()))};
}

/// Collects the tensors. A quantized layer has the scales of its weight and input too.
Export collect(const CheckpointModel& model, bool quantize) {
  constexpr std::string_view kWeight = ".weight";
  const std::map<std::string, QuantizedLayer> quantized = quantized_layers(model);
  Export result;
  for (const auto& [name, param] : model.params) {
    if (!name.ends_with(kWeight)) {
      result.items.push_back({name, param.values});
      continue;
    }
    at::Tensor stored = param.values;
    const std::string layer = name.substr(0, name.size() - kWeight.size());
    if (const auto found = quantized.find(layer); found != quantized.end()) {
      const QuantizedLayer& by = found->second;
      if (quantize) stored = by.int8_weight;
      result.items.push_back({layer + ".weight_scale", by.weight_scale});
      if (by.rounds_inputs()) {
        result.items.push_back({layer + ".input_scale", by.input_scale});
        result.items.push_back({layer + ".input_zero_point", by.input_zero_point});
      }
    }
    result.items.push_back({name, stored});
    result.rows.push_back(count(layer, param, stored));
  }
  return result;
}

/// Formats the counts, one line per weight and a total.
std::string table(const Export& result) {
  LayerRow total{.name = "all", .stored_as = ""};
  size_t width = total.name.size();
  for (const LayerRow& row : result.rows) {
    add(row, &total);
    width = std::max(width, row.name.size());
  }
  std::string text = fmt::format("{:<{}}  {:>8}  {:>10}  {:>10}  {:>22}  {:>22}  {:>15}\n", "layer",
                                 width, "stored", "weights", "masked", "masked, not 0 (before)",
                                 "masked, not 0 (after)", "rounded to 0");
  const auto line = [&](const LayerRow& row) {
    text +=
        fmt::format("{:<{}}  {:>8}  {:>10}  {:>10}  {:>22}  {:>22}  {:>15}\n", row.name, width,
                    row.stored_as, row.num_weights, row.num_masked, row.num_masked_nonzero_before,
                    row.num_masked_nonzero_after, row.num_rounded_to_zero);
  };
  for (const LayerRow& row : result.rows) line(row);
  line(total);
  return text;
}

std::map<std::string, std::string> metadata(const CheckpointModel& model, bool quantize) {
  return {{"format_version", kFormatVersion},
          {"producer", "lockstep " + daemon::version_facts().version},
          {"source", std::filesystem::path(model.prefix).filename().string()},
          {"step", std::to_string(model.step)},
          {"weights", quantize ? "int8" : "float32"}};
}

}  // namespace

Written SafetensorsExport::write(const CheckpointModel& model, const CheckpointNetwork* /*network*/,
                                 const ExportOptions& options) {
  const bool quantize = options.quantize;
  if (quantize) require_quantized(model);
  const Export result = collect(model, quantize);
  // A quantized zero is zero, so only a bug could break this.
  for (const LayerRow& row : result.rows)
    check(row.num_masked_nonzero_after == 0,
          "int8 of a pruned weight of " + row.name + " is not 0");
  std::vector<checkpoint::SafetensorsItem> stored;
  for (const checkpoint::SafetensorsItem& item : result.items) {
    const auto parts = options.sparse ? checkpoint::without_zeros(item) : std::vector{item};
    stored.insert(stored.end(), parts.begin(), parts.end());
  }
  const int64_t num_bytes =
      checkpoint::write_safetensors(options.out_file, stored, metadata(model, quantize));
  int64_t plain_bytes = 0;
  for (const auto& [name, param] : model.params)
    plain_bytes += param.values.numel() * static_cast<int64_t>(sizeof(float));
  Written written{.file = options.out_file, .num_bytes = num_bytes};
  written.text = fmt::format(
      "{}{}: {} bytes; the weights and biases as float32 take {} ({:.2f} times as much)\n",
      table(result), options.out_file, num_bytes, plain_bytes,
      static_cast<double>(plain_bytes) / static_cast<double>(num_bytes));
  for (const checkpoint::SafetensorsItem& item : stored)
    written.tensors.push_back(form_of(item.name, item.tensor));
  return written;
}

}  // namespace lockstep::exports
