#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "infer/exports/checkpoint_model.h"
#include "train/evaluator.h"

/// Manifest of an export: facts about the file, its checkpoint and the run.
namespace lockstep::exports {

/// Measurements of a checkpoint's run at the checkpoint's own step; nullopt if unknown.
struct RunFigures {
  std::optional<double> train_loss;  ///< of the update that led to the checkpoint
  std::optional<train::EvalResult> eval;
};

struct TensorForm {
  std::string name;
  std::string dtype;  ///< float32, int8, ... as `lockstep ckpt show` names them
  std::vector<int64_t> shape;
};

TensorForm form_of(const std::string& name, const at::Tensor& tensor);

/// Result of an export.
struct Written {
  std::string file;  ///< or the prefix of several files
  int64_t num_bytes = 0;
  std::string text;                 ///< for people: lines, the last one with its newline
  std::vector<TensorForm> tensors;  ///< tensors of the file, with their names in it
};

/// Quantization in an exported file, compared with the training of its checkpoint.
enum class Quantization {
  kNone,     ///< nothing was quantized
  kFake,     ///< float32 weights, and the rounding of inputs and weights
  kInt8,     ///< int8 weights, and the rounding of inputs
  kLeftOut,  ///< none; results differ from those of evaluation
};

/// Facts about a checkpoint besides its weights. Empty where neither the checkpoint nor the run's
/// files contain them.
struct ExportFacts {
  std::string source;  ///< prefix of the checkpoint
  int64_t step = 0;
  std::optional<double> epoch;
  double sparsity = 0;            ///< pruned share of the weights of 2 or more dimensions
  std::string parameters_sha256;  ///< same as in a run's summary.json; empty: unknown
  std::vector<int64_t> input_shape;
  int64_t num_classes = 0;               ///< 0: shape and classes are unknown
  std::vector<std::string> class_names;  ///< by class number; empty: unknown
  Quantization quantization = Quantization::kNone;
  bool is_ema = false;                     ///< the weights are moving averages
  std::optional<RunFigures> figures = {};  ///< nullopt: search the run's files for them
};

/// Returns the facts of a checkpoint. `network` may be null: the checkpoint does not say which
/// network it belongs to.
ExportFacts facts_of(const CheckpointModel& saved, const CheckpointNetwork* network);

/// Returns the manifest's content (docs/export.md lists its keys).
nlohmann::ordered_json manifest_json(const ExportFacts& facts, const std::string& format,
                                     const Written& written);

/// Writes WRITTEN.FILE.json (docs/export.md lists its keys) and returns its path.
std::string write_manifest(const ExportFacts& facts, const std::string& format,
                           const Written& written);

}  // namespace lockstep::exports
