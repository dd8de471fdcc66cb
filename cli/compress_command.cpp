#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/tools/inspect.h"
#include "cli/launching.h"
#include "cli/tensor_commands.h"
#include "daemon/config/run_config.h"
#include "daemon/run/device.h"
#include "infer/data_feeder.h"
#include "infer/exports/export.h"
#include "infer/exports/inference.h"
#include "infer/predictor.h"

// A run that starts from a trained network's weights prunes and quantizes them. Both networks are
// then exported, evaluated and timed by the engines of `lockstep infer`.
namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kEvalBatch = 64, kFewSamples = 8;
constexpr double kMeasuredSeconds = 0.5;  // of each latency, at least

/// Shares of the epochs at which the phases end.
constexpr double kPrunedAt = 0.6, kQuantizedFrom = 0.7, kRangesFixedAt = 0.9;

/// Text of the recipe: prunes by magnitude, then trains on with the masks kept, perhaps rounded.
std::string recipe_text(const CompressOptions& options, double learning_rate) {
  const double epochs = options.epochs;
  std::string text = fmt::format(
      "# Written by `lockstep compress`: starts from trained weights. Keys: docs/recipe.md\n"
      "version: 1.0.0\n"
      "modifiers:\n"
      "  - !EpochRangeModifier {{start_epoch: 0.0, end_epoch: {:g}}}\n"
      "  - !LearningRateFunctionModifier {{lr_func: cosine, start_epoch: 0.0, end_epoch: {:g}, "
      "init_lr: {:g}, final_lr: {:g}}}\n",
      epochs, epochs, learning_rate / 2, learning_rate / 100);
  if (options.target > 0)
    text += fmt::format(
        "  - !GMPruningModifier {{params: __ALL_PRUNABLE__, init_sparsity: {:g}, final_sparsity: "
        "{:g}, start_epoch: 0.0, end_epoch: {:g}, update_frequency: {:g}{}}}\n",
        std::min(0.05, options.target), options.target, kPrunedAt * epochs, kPrunedAt * epochs / 20,
        // Engine sparse multiplies four int8 inputs at once.
        options.quantize ? ", mask_type: '[1, 4]'" : "");
  if (options.quantize)
    text += fmt::format(
        "  - !QuantizationModifier {{start_epoch: {:g}, freeze_bn_stats_epoch: {:g}, "
        "disable_quantization_observer_epoch: {:g}}}\n",
        kQuantizedFrom * epochs, kRangesFixedAt * epochs, kRangesFixedAt * epochs);
  return text;
}

/// Writes the recipe, or finds it as an earlier call with the same options left it.
void write_recipe(const fs::path& file, const std::string& text) {
  if (files::exists(file) && files::read(file) != text)
    throw Error(ExitCode::kCannotCreate, "compress",
                fmt::format("{} is another recipe: remove {}, or give another folder with --output",
                            file.string(), file.parent_path().string()));
  files::make_folders(file.parent_path());
  files::write_atomically(file, text);
}

/// The run that compresses, as changes of the trained run's file.
RunCommandOptions run_of(const CompressOptions& options, const std::string& start,
                         const fs::path& folder) {
  RunCommandOptions run;
  static_cast<launch::RanksOptions&>(run) = options.ranks;
  run.config_file = options.config_file;
  run.above = options.above;
  for (const std::string& set :
       {fmt::format("recipe={}", (folder / "recipe.yaml").string()),
        fmt::format("run.project_dir={}", (folder / "run").string()),
        fmt::format("checkpoint.warm_start_ckpt={}", start),
        std::string("checkpoint.checkpoint_exclude_scopes=null"),
        std::string("train.max_steps=null"), std::string("train.max_epochs=null")})
    run.above.sets.push_back(set);
  return run;
}

/// A network with an engine, measured.
struct Row {
  std::string network, engine;
  int64_t file_bytes = 0;
  std::optional<double> accuracy;  ///< nullopt: the data has no classes
  double one_ms = 0, few_ms = 0;   ///< batches of 1 and kFewSamples
};

/// Evaluation data in memory, which all engines answer.
struct Samples {
  std::vector<coord::DataMap> batches;
  coord::DataMap few;  ///< kFewSamples samples, repeated if there are fewer
};

coord::DataMap inputs_of(at::Tensor inputs_BX, int64_t num_samples) {
  while (inputs_BX.size(0) < num_samples) inputs_BX = at::cat({inputs_BX, inputs_BX});
  coord::DataMap feed;
  feed.put("inputs", inputs_BX.narrow(0, 0, num_samples).contiguous());
  return feed;
}

Samples read_samples(const daemon::RunConfig& config, const infer::LoadedNetwork& network) {
  infer::DatasetFeeder feeder(
      config.data.open_eval({.seed = config.run.seed,
                             .trained = {.class_names = network.class_names},
                             .use = data::DatasetUse::kInference}),
      kEvalBatch);
  Samples samples;
  while (auto feed = feeder.next()) samples.batches.push_back(std::move(*feed));
  if (samples.batches.empty())
    throw Error(ExitCode::kBadData, "compress", "data.eval has no sample");
  samples.few = inputs_of(samples.batches.front().tensor("inputs"), kFewSamples);
  return samples;
}

std::optional<double> accuracy_of(infer::Predictor* predictor, const Samples& samples) {
  int64_t num_right = 0, num_all = 0;
  for (const coord::DataMap& batch : samples.batches) {
    if (!batch.contains("targets")) return std::nullopt;
    const at::Tensor targets = batch.tensor("targets");
    const coord::DataMap outputs =
        predictor->predict(inputs_of(batch.tensor("inputs"), batch.tensor("inputs").size(0)));
    const at::Tensor& logits = outputs.tensor(predictor->nodes().outputs.front().name);
    if (targets.scalar_type() != at::kLong || logits.dim() != targets.dim() + 1)
      return std::nullopt;
    num_right += logits.argmax(-1).eq(targets).sum().item<int64_t>();
    num_all += targets.numel();
  }
  return static_cast<double>(num_right) / static_cast<double>(num_all);
}

/// Median time of an answer.
double latency_ms(infer::Predictor* predictor, const coord::DataMap& feed) {
  std::vector<double> times_ms;
  for (int warm = 0; warm < 3; ++warm) (void)predictor->predict(feed);
  const auto begin = Clock::now();
  while (times_ms.size() < 5 ||
         Clock::now() - begin < std::chrono::duration<double>(kMeasuredSeconds)) {
    const auto start = Clock::now();
    (void)predictor->predict(feed);
    times_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times_ms.begin(), times_ms.begin() + static_cast<int64_t>(times_ms.size() / 2),
                   times_ms.end());
  return times_ms[times_ms.size() / 2];
}

infer::EngineOptions engine_of(const std::string& name) { return {.engine = name, .tensorrt = {}}; }

Row measure(const std::string& name, const std::string& engine, int64_t file_bytes,
            const infer::LoadedNetwork& network, const Samples& samples) {
  infer::Predictor predictor(network, engine_of(engine), at::kCPU);
  Row row{.network = name, .engine = engine, .file_bytes = file_bytes};
  row.accuracy = accuracy_of(&predictor, samples);
  row.one_ms = latency_ms(&predictor, inputs_of(samples.few.tensor("inputs"), 1));
  row.few_ms = latency_ms(&predictor, samples.few);
  return row;
}

/// Writes the ONNX file of a checkpoint; returns its size.
int64_t export_onnx(const std::string& checkpoint, const fs::path& file, bool quantize,
                    const std::string& run_file) {
  (void)exports::export_command({.where = checkpoint,
                                 .out_file = file.string(),
                                 .quantize = quantize,
                                 .format = "onnx",
                                 .run_file = run_file});
  return static_cast<int64_t>(fs::file_size(file));
}

std::string table(const std::vector<Row>& rows) {
  std::string text = fmt::format("{:<11} {:<10} {:>9} {:>9} {:>12} {:>12}\n", "network", "engine",
                                 "accuracy", "ONNX MB", "batch 1 ms", "batch 8 ms");
  for (const Row& row : rows)
    text += fmt::format("{:<11} {:<10} {:>9} {:>9.3f} {:>12.3f} {:>12.3f}\n", row.network,
                        row.engine, row.accuracy ? fmt::format("{:.4f}", *row.accuracy) : "-",
                        static_cast<double>(row.file_bytes) / 1e6, row.one_ms, row.few_ms);
  const double faster = rows.front().one_ms / rows.back().one_ms;
  return text + fmt::format("batch 1: {:.2f} times as fast as before\n", faster);
}

void require_usage(const CompressOptions& options) {
  require_one_process("compress", "it starts the ranks itself");
  if (options.target == 0 && !options.quantize)
    throw Error(ExitCode::kUsage, "compress",
                "nothing to do: give --target, such as --target 90%, or --quantize");
}

}  // namespace

daemon::CommandResult compress_command(const CompressOptions& options) {
  require_usage(options);
  daemon::RunConfig config =
      daemon::require_run_config(options.config_file, daemon::overrides_of(options.above));
  if (!config.data.eval)
    throw Error(
        ExitCode::kConfig, "compress",
        options.config_file + ": data.eval is missing, on which both networks are measured");
  const Project project = config.run.project();
  const fs::path folder = fs::absolute(options.out_folder.empty() ? project.folder() / "compressed"
                                                                  : fs::path(options.out_folder));
  std::string start = checkpoint::save_at(
      options.checkpoint.empty() ? config.checkpoint.folder(project).string() : options.checkpoint);
  if (!files::is_remote(start)) start = fs::absolute(start);
  config.run.device = "cpu";
  (void)daemon::set_up_alone(config.run, config.gpu);
  write_recipe(folder / "recipe.yaml", recipe_text(options, config.optimizer.learning_rate));
  // All that may fail comes before the training, which would be in vain.
  const fs::path file_before = folder / "before.onnx", file_after = folder / "after.onnx";
  const int64_t bytes_before =
      export_onnx(start, file_before, /*quantize=*/false, options.config_file);
  (void)infer::Predictor(infer::open_onnx(file_before), engine_of("sparse"), at::kCPU);
  const infer::LoadedNetwork before = exports::open_checkpoint(start, options.config_file);
  const Samples samples = read_samples(config, before);
  std::vector<Row> rows{measure("before", "optimized", bytes_before, before, samples)};
  const RunCommandOptions run = run_of(options, start, folder);
  if (const daemon::CommandResult trained = run_command(run); trained.exit_code != 0)
    return trained;

  const std::string end = checkpoint::save_at((folder / "run" / "checkpoints").string());
  const int64_t bytes_after = export_onnx(end, file_after, options.quantize, options.config_file);
  rows.push_back(measure("after", "optimized", bytes_after,
                         exports::open_checkpoint(end, options.config_file), samples));
  // Of the file that can be deployed.
  rows.push_back(measure("after", "sparse", bytes_after, infer::open_onnx(file_after), samples));
  return {fmt::format("{}{}: recipe.yaml, run, before.onnx, after.onnx\n", table(rows),
                      folder.string()),
          0};
}

}  // namespace lockstep::cli
