#include "infer/exports/manifest.h"

#include <array>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files/files.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/format/tensor_type.h"
#include "daemon/config/checkpoint_metadata.h"
#include "daemon/config/program.h"
#include "train/records.h"

namespace lockstep::exports {
namespace {

constexpr int64_t kMaxSummaryBytes = int64_t{1} << 20;

/// Reads a file; faults become a warning, since the export succeeds without it.
template <typename Read>
void pass_over_faults(const std::filesystem::path& path, Read read) {
  if (!files::is_file(path)) return;
  try {
    read();
  } catch (const Error& fault) {
    log::warning("export", path.string() + " is skipped: " + fault.what());
  } catch (const nlohmann::json::exception& fault) {
    log::warning("export", path.string() + " is skipped: " + fault.what());
  }
}

void take_summary(const std::filesystem::path& path, int64_t step, const std::string& sha256,
                  RunFigures* figures) {
  const nlohmann::json json = nlohmann::json::parse(files::read(path, kMaxSummaryBytes));
  if (sha256.empty() || json.at("steps") != step) return;
  const std::string trained = json.at("parameters_sha256");
  // An older summary has no evaluated_sha256; then the trained weights were evaluated.
  const bool is_evaluated = sha256 == json.value("evaluated_sha256", trained);
  if ((is_evaluated || sha256 == trained) && json.at("train_loss").is_number())
    figures->train_loss = json["train_loss"].get<double>();
  const auto& eval = json.at("eval");
  if (!is_evaluated || !eval.is_object()) return;
  figures->eval = {.loss = eval.at("loss").get<double>(),
                   .num_samples = eval.at("num_samples").get<int64_t>()};
  if (!eval.at("accuracy").is_null()) figures->eval->accuracy = eval["accuracy"].get<double>();
}

/// Reads the run's files next to the folder of the checkpoint. summary.json is used if its step and
/// parameters are those of the checkpoint, steps.csv for its line of that step.
RunFigures find_run_figures(const std::string& save_prefix, int64_t step,
                            const std::string& parameters_sha256) {
  // The run's folder: checkpoints are in its sub-folder.
  const std::filesystem::path saves = std::filesystem::absolute(save_prefix).parent_path();
  const std::filesystem::path run = saves.parent_path();
  const std::filesystem::path summary = run / "summary.json", steps = run / "train" / "steps.csv";
  RunFigures figures;
  // The summary comes last: its loss is that of the run's end and overrides the line of steps.csv.
  pass_over_faults(steps, [&] {
    for (const train::StepLine& line : train::read_steps(steps))
      if (line.step == step && std::isfinite(line.loss)) figures.train_loss = line.loss;
  });
  pass_over_faults(summary, [&] { take_summary(summary, step, parameters_sha256, &figures); });
  return figures;
}

// The manifest says what is known of an exported file. Unknown facts are null, so that readers can
// distinguish them from zero.

using Json = nlohmann::ordered_json;

/// Returns the pruned fraction of all weights with 2 or more dimensions.
double masked_share(const CheckpointModel& saved) {
  int64_t num_weights = 0, num_masked = 0;
  for (const auto& [name, param] : saved.params) {
    if (!name.ends_with(".weight") || param.values.dim() < 2) continue;
    num_weights += param.values.numel();
    num_masked += param.pruned.sum().item<int64_t>();
  }
  return num_weights == 0 ? 0 : static_cast<double>(num_masked) / static_cast<double>(num_weights);
}

/// Returns loss and accuracy of the checkpoint's step, as the run recorded them.
Json figures_json(const ExportFacts& facts) {
  const RunFigures figures =
      facts.figures ? *facts.figures
                    : find_run_figures(facts.source, facts.step, facts.parameters_sha256);
  Json json{{"train_loss", json_or_null(figures.train_loss)}, {"eval", nullptr}};
  // Evaluation rounded inputs and weights. A file without quantization gives other results, so the
  // evaluation's numbers would be wrong for it.
  if (figures.eval && facts.quantization != Quantization::kLeftOut)
    json["eval"] = {{"accuracy", json_or_null(figures.eval->accuracy)},
                    {"loss", figures.eval->loss},
                    {"num_samples", figures.eval->num_samples}};
  return json;
}

Json quantization_json(Quantization quantization) {
  // In the order of Quantization.
  return std::array<Json, 4>{nullptr, "fake", "int8", "left out"}.at(
      static_cast<size_t>(quantization));
}

}  // namespace

TensorForm form_of(const std::string& name, const at::Tensor& tensor) {
  const auto number = checkpoint::type_number(tensor.scalar_type());
  return {name, checkpoint::type_name(number.value_or(0)), tensor.sizes().vec()};
}

ExportFacts facts_of(const CheckpointModel& saved, const CheckpointNetwork* network) {
  ExportFacts facts{.source = saved.prefix, .step = saved.step, .sparsity = masked_share(saved)};
  if (saved.steps_per_epoch && *saved.steps_per_epoch > 0)
    facts.epoch = static_cast<double>(saved.step) / static_cast<double>(*saved.steps_per_epoch);
  facts.class_names = daemon::classes_of_text(saved.class_names);
  if (network != nullptr) {
    // Shape, classes and digest need the network; without it they stay unknown.
    facts.parameters_sha256 = train::parameters_sha256(network->model->params());
    facts.input_shape = network->input_shape;
    facts.num_classes = network->num_classes;
  }
  return facts;
}

Json manifest_json(const ExportFacts& facts, const std::string& format, const Written& written) {
  const bool knows_shapes = facts.num_classes > 0;
  Json json{{"format", format},
            {"file", std::filesystem::path(written.file).filename().string()},
            {"num_bytes", written.num_bytes},
            {"lockstep", daemon::version_facts().version},
            {"commit", daemon::version_facts().commit},
            {"source", facts.source},
            {"step", facts.step},
            {"epoch", json_or_null(facts.epoch)}};
  json.update(figures_json(facts));
  json["sparsity"] = facts.sparsity;
  json["quantization"] = quantization_json(facts.quantization);
  json["ema"] = facts.is_ema;
  json["parameters_sha256"] =
      facts.parameters_sha256.empty() ? Json(nullptr) : Json(facts.parameters_sha256);
  json["input_shape"] = knows_shapes ? Json(facts.input_shape) : Json(nullptr);
  json["num_classes"] = knows_shapes ? Json(facts.num_classes) : Json(nullptr);
  if (!facts.class_names.empty()) json["class_names"] = facts.class_names;
  json["tensors"] = Json::array();
  for (const TensorForm& tensor : written.tensors)
    json["tensors"].push_back(
        {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
  return json;
}

std::string write_manifest(const ExportFacts& facts, const std::string& format,
                           const Written& written) {
  const std::string path = written.file + ".json";
  files::write_atomically(path, json_text(manifest_json(facts, format, written), 2) + "\n");
  return path;
}

}  // namespace lockstep::exports
