#include "infer/exports/model_publisher.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/files/project.h"
#include "base/json.h"
#include "base/log.h"
#include "base/yaml/config_reader.h"
#include "infer/exports/export.h"
#include "infer/exports/formats.h"
#include "infer/exports/portable_network.h"
#include "infer/saved_model.h"
#include "train/past_evaluations.h"
#include "train/records.h"
#include "train/step/training_pass.h"

// Publication of checkpoints for inference: digests, folders, and the thread of the exports.
namespace lockstep::exports {
namespace {

/// Size and digest of a file for a manifest.
struct FileDigest {
  int64_t num_bytes = 0;
  std::string sha256;  ///< 64 hex digits
};

/// Computes the digest piece by piece, so memory does not grow with the file. Throws as
/// files::Reader.
FileDigest file_digest(const std::filesystem::path& path) {
  // Large enough for fast reads, small enough for any memory.
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  const files::Reader file(path);
  Sha256 sum;
  std::string piece;
  for (int64_t offset = 0; offset < file.num_bytes(); offset += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, file.num_bytes() - offset)));
    file.read_at(offset, std::span(piece));
    sum.add(std::string_view(piece));
  }
  return {file.num_bytes(), sum.hex()};
}

// Publishes models under RUN/saved_models. A folder is written under a hidden name and renamed once
// it is on disk. So readers never see an incomplete one. Folders are withdrawn in reverse order.

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kModelFile = "model.pt";
constexpr const char* kOnnxFile = "model.onnx";
constexpr const char* kBest = "best";
// End of a hidden name: not yet published, or withdrawn.
constexpr const char* kUnfinished = ".tmp";

[[noreturn]] void refuse(const fs::path& path, const char* what, const std::error_code& fault) {
  throw Error(ExitCode::kIo, "export",
              fmt::format("{}: {}: {}", path.string(), what, fault.message()));
}

void rename_over(const fs::path& from, const fs::path& to) {
  std::error_code fault;
  fs::rename(from, to, fault);
  if (fault) refuse(from, "cannot be renamed", fault);
}

void remove_folder(const fs::path& folder) {
  std::error_code fault;
  fs::remove_all(folder, fault);
  if (fault) refuse(folder, "cannot be removed", fault);
}

/// Removes a published folder atomically for readers: renames it to a hidden name first.
void withdraw(const fs::path& folder) {
  const fs::path hidden = folder.parent_path() / ("." + folder.filename().string() + kUnfinished);
  remove_folder(hidden);
  rename_over(folder, hidden);
  remove_folder(hidden);
}

void write_json(const fs::path& path, const Json& json) {
  files::write_atomically(path, json_text(json, 2) + "\n");
}

void write_figures(const fs::path& folder, const train::Evaluated& evaluated) {
  Json eval = evaluated.eval ? Json::parse(train::eval_json(*evaluated.eval)) : Json::object();
  write_json(folder / "losses.json",
             {{"global_step", evaluated.step},
              {"train", json_or_null(evaluated.train_loss)},
              {"eval", eval.contains("loss") ? eval["loss"] : Json(nullptr)}});
  Json kpi{{"global_step", evaluated.step}};
  if (evaluated.eval) {
    if (eval.contains("kpis")) kpi.update(eval["kpis"]);
    kpi["global_step"] = evaluated.step;
    kpi["accuracy"] = eval["accuracy"];
    kpi["num_samples"] = eval["num_samples"];
    if (eval.contains("metrics")) kpi.update(eval["metrics"]);
  }
  write_json(folder / "kpi.json", kpi);
}

void write_published_manifest(const fs::path& folder, const train::Evaluated& evaluated,
                              ExportFacts facts, const Written& written) {
  facts.figures = RunFigures{evaluated.train_loss, evaluated.eval};
  Json json{{"global_step", evaluated.step}, {"files", Json::object()}};
  for (const char* name : {kModelFile, kOnnxFile, "losses.json", "kpi.json"}) {
    if (!files::exists(folder / name)) continue;  // no ONNX wanted
    const FileDigest digest = file_digest(folder / name);
    json["files"][name] = {{"num_bytes", digest.num_bytes}, {"sha256", digest.sha256}};
  }
  json.update(manifest_json(facts, "torchscript", written));
  write_json(folder / "manifest.json", json);
}

/// Writes the run's first export next to its checkpoints. They can then be restored without the
/// network's code and without saved_models.
void write_graph_once(const fs::path& checkpoints, const fs::path& model,
                      const CheckpointNetwork& network) {
  const fs::path graph_file = checkpoints / "inference_graph",
                 nodes = checkpoints / "io_nodes.json";
  if (files::exists(graph_file) && files::exists(nodes)) return;
  const std::string archive = files::read(model);
  const std::string argument = infer::input_name(*infer::load_torchscript(archive, model.string()));
  files::write_atomically(graph_file, archive);
  std::vector<Json> shape{nullptr};  // any number of samples
  shape.insert(shape.end(), network.input_shape.begin(), network.input_shape.end());
  const Json input{
      {"name", argument}, {"shape", shape}, {"dtype", infer::dtype_name(network.input_dtype)}};
  const Json output{{"name", "logits"},
                    {"shape", Json::array({nullptr, network.num_classes})},
                    {"dtype", "float32"}};
  write_json(nodes, {{"inputs", Json::array({input})}, {"outputs", Json::array({output})}});
}

/// True if `published` contains the same weights in the wanted formats.
bool holds(const fs::path& published, const std::string& parameters_sha256, bool with_onnx) {
  if (!files::exists(published / "manifest.json")) return false;
  if (with_onnx && !files::exists(published / kOnnxFile)) return false;
  const Json json = Json::parse(files::read(published / "manifest.json"), nullptr, false);
  return json.is_object() && json.value("parameters_sha256", Json(nullptr)) == parameters_sha256;
}

/// Removes what an interrupted export left.
void tidy(const fs::path& folder) {
  std::vector<fs::path> left;
  for (const std::string& name : files::list(folder))
    if (name.starts_with(".") && name.ends_with(kUnfinished)) left.push_back(folder / name);
  for (const fs::path& path : left) remove_folder(path);
}

/// Returns the evaluation's value in an export; nullopt if it is unknown or not finite.
std::optional<double> value_of(const fs::path& published, const std::string& metric) {
  const bool is_loss = metric == "eval.loss";
  const fs::path file = published / (is_loss ? "losses.json" : "kpi.json");
  if (!files::exists(file)) return std::nullopt;
  const Json json = Json::parse(files::read(file), nullptr, false);
  const auto found = json.is_object() ? json.find(is_loss ? "eval" : "accuracy") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// Returns the best published export; the earliest of equally good ones. All are compared each
/// time, so failed or replaced exports count correctly. Steps above `newest` are ignored: the run
/// has since resumed from an older checkpoint.
std::optional<int64_t> best_published(const fs::path& folder, int64_t newest,
                                      const std::string& metric) {
  std::optional<int64_t> best_step;
  std::optional<double> best;
  for (const int64_t step : infer::published_steps(folder)) {
    const std::optional<double> value = value_of(folder / std::to_string(step), metric);
    if (step > newest || !value || !train::is_better(metric, *value, best)) continue;
    best_step = step;
    best = value;
  }
  return best_step;
}

/// Sets the link `best` by rename, so that it always leads to a complete folder.
void point_best_to(const fs::path& folder, int64_t step) {
  const fs::path link = folder / (std::string(".") + kBest + kUnfinished);
  files::remove_file(link);
  std::error_code fault;
  fs::create_directory_symlink(std::to_string(step), link, fault);
  if (fault) refuse(link, "cannot be made", fault);
  rename_over(link, folder / kBest);
  files::sync_folder(folder);
}

/// Removes surplus exports. Keeps the best one, and `keep` others: `newest` and then the highest
/// steps. A run that resumes from an older checkpoint publishes lower steps than existing ones.
void remove_surplus(const fs::path& folder, int64_t newest, int64_t keep) {
  if (keep < 0) return;
  std::error_code ignored;
  const fs::path best = fs::read_symlink(folder / kBest, ignored);
  std::vector<int64_t> others = infer::published_steps(folder);
  std::erase_if(others,
                [&](int64_t step) { return step == newest || best == std::to_string(step); });
  const bool newest_counts = best != std::to_string(newest);
  const size_t num_kept = static_cast<size_t>(keep) - (newest_counts && keep > 0 ? 1 : 0);
  for (size_t i = 0; i + num_kept < others.size(); ++i)
    withdraw(folder / std::to_string(others[i]));
}

/// Publishes a checkpoint as a model for inference. RUN/saved_models/<step>/ contains:
///
///   model.pt       TorchScript of evaluation
///   model.onnx     the same as ONNX, if wanted
///   losses.json    the losses of training and evaluation
///   kpi.json       accuracy and the results of eval.metrics
///   manifest.json  docs/export.md; global_step, size and SHA-256 of each file
///
/// Once per run, RUN/checkpoints/inference_graph is written too. It contains the first model.pt,
/// and io_nodes.json with the names of inputs and outputs.
///
/// The folder is renamed to its final name once everything is on disk, so readers see all of it or
/// nothing. A folder of the same step is replaced if its weights differ. Then saved_models/best is
/// set to the best existing model. Models beyond `keep` are removed, lowest steps first.
///
/// `has_read` is called once the checkpoint is no longer needed, also before an error. Throws Error
/// as export_command() and base/files/files.h do.
void publish_model(const fs::path& project_dir, const train::Evaluated& evaluated,
                   const train::PublishOptions& options, const std::function<void()>& has_read) {
  std::optional<CheckpointModel> saved;
  try {
    // has_read() in both cases: saves may be waiting to remove this checkpoint.
    saved = read_checkpoint_model(evaluated.save, options.ema);
  } catch (...) {
    has_read();
    throw;
  }
  has_read();
  const CheckpointNetwork network = rebuild_network(*saved);
  const Project project(project_dir);
  const fs::path folder = project.saved_models();
  const fs::path published = project.saved_model(evaluated.step);
  const fs::path made = folder / fmt::format(".{}.new{}", evaluated.step, kUnfinished);
  files::make_folders(folder);
  tidy(folder);
  ExportFacts facts = torchscript_facts(*saved, network);
  facts.is_ema = options.ema;
  // The same weights may be published already, by an export before a restart.
  if (!holds(published, facts.parameters_sha256, options.onnx)) {
    try {
      files::make_folders(made);
      const Written written = write_network(
          *saved, network, {.out_file = (made / kModelFile).string(), .format = "torchscript"});
      if (options.onnx)
        (void)write_network(*saved, network,
                            {.out_file = (made / kOnnxFile).string(),
                             .quantize = !saved->layers.empty(),
                             .format = "onnx"});
      write_figures(made, evaluated);
      write_published_manifest(made, evaluated, facts, written);
      // Everything must be on disk before the rename makes it visible.
      files::sync_folder(made);
    } catch (...) {  // saves need the disk space
      std::error_code ignored;
      fs::remove_all(made, ignored);
      throw;
    }
    if (files::exists(published)) withdraw(published);
    rename_over(made, published);
    files::sync_folder(folder);
  }
  write_graph_once(project.checkpoints(), published / kModelFile, network);
  if (options.best)
    if (const auto best = best_published(folder, evaluated.step, options.best_by))
      point_best_to(folder, *best);
  remove_surplus(folder, evaluated.step, options.keep);
}

}  // namespace

// One background thread per export, on rank 0. Training waits only if the previous export is still
// running, or if a save begins while the checkpoint is still being read.

ModelPublisher::ModelPublisher(std::filesystem::path project_dir,
                               const train::PublishOptions& options, dist::Communicator& control,
                               std::function<void(bool ok)> on_done)
    : project_dir_(std::move(project_dir)),
      options_(options),
      control_(control),
      on_done_(std::move(on_done)) {
  if (control_.rank() != 0) return;
  try {
    // Saves may need the disk space of what a killed export left.
    const fs::path folder = Project(project_dir_).saved_models();
    if (files::is_folder(folder)) tidy(folder);
  } catch (const Error& fault) {
    log::warning("export", fmt::format("files of an earlier export are kept: {}", fault.what()));
  }
}

ModelPublisher::~ModelPublisher() { join(); }

/// Returns why the network has no TorchScript form; empty if it has one.
static std::string fault_of_form(const model::Model& model) {
  if (!model.torchscript_archive().empty()) return "";
  try {
    (void)torchscript_source(portable(model, {}, 0));
  } catch (const Error& fault) {
    return fault.what();
  }
  return "";
}

void ModelPublisher::join() {
  if (done_.valid()) last_ok_ = done_.get();
}

void ModelPublisher::begin(const train::Evaluated& evaluated) {
  if (control_.rank() != 0) return;
  // At most one export at a time. The wait counts as training time.
  train::Stopwatch watch;
  join();
  std::promise<void> has_read;
  read_ = has_read.get_future();
  try {
    done_ = std::async(std::launch::async, [this, evaluated, read = std::move(has_read)]() mutable {
      return run(evaluated, std::move(read));
    });
  } catch (const std::system_error& fault) {
    log::warning("export", fmt::format("step {} is not exported: no thread for it ({})",
                                       evaluated.step, fault.what()));
    read_ = {};
    last_ok_ = false;
  }
  waited_s_ += watch.lap();
}

bool ModelPublisher::run(const train::Evaluated& evaluated, std::promise<void> has_read) const {
  train::Stopwatch watch;
  bool ok = false;
  std::string fault;
  try {
    publish_model(project_dir_, evaluated, options_, [&] { has_read.set_value(); });
    ok = true;
  } catch (const std::exception& error) {
    fault = error.what();
  }
  // A failed export never ends the run; settle() reports it at the end.
  if (ok)
    log::info("export",
              fmt::format("published step {}: {} ({:.3f} s)", evaluated.step,
                          Project(project_dir_).saved_model(evaluated.step).string(), watch.lap()));
  else
    log::warning(
        "export",
        fmt::format("step {} could not be exported: {}; training continues, checkpoint {} is kept",
                    evaluated.step, fault, evaluated.save));
  if (on_done_) on_done_(ok);
  return ok;
}

void ModelPublisher::wait_until_read() {
  if (!read_.valid()) return;
  train::Stopwatch watch;
  read_.get();
  waited_s_ += watch.lap();
}

bool ModelPublisher::settle() {
  log::debug("export", fmt::format("training waited {:.6f} s for exports", waited_s_));
  join();
  // A collective: all ranks learn whether rank 0's last export succeeded.
  return !dist::any_of(control_, control_.rank() == 0 && !last_ok_);
}

void require_publishable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         const train::PublishOptions& options) {
  if (!options.any()) return;
  if (options.onnx && !can_export(model, input_shape, "onnx"))
    throw Error(
        ExitCode::kConfig, "export",
        fmt::format("'export.onnx': this network cannot be exported as ONNX; remove the key. "
                    "`lockstep ckpt export` can write it as {}",
                    possible_exports(model, input_shape)));
  const std::string fault = fault_of_form(model);
  if (fault.empty()) return;
  const std::string beside = options.preset.empty() ? "" : " with '" + options.preset + "'";
  throw Error(ExitCode::kConfig, "export",
              fmt::format("section 'export'{} needs TorchScript: {}; remove the section. `lockstep "
                          "ckpt export` can write this network as {}",
                          beside, fault, possible_exports(model, input_shape)));
}

void leave_out_exports(const model::Model& model, train::PublishOptions* options,
                       std::vector<std::string>* notes) {
  if (!options->any() || !options->is_from_preset || fault_of_form(model).empty()) return;
  options->after_evaluation = options->at_end = false;
  notes->push_back(
      fmt::format("'{}' exports nothing: this network has no TorchScript form", options->preset));
}

}  // namespace lockstep::exports
