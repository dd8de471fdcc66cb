#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "daemon/exports/run_figures.h"
#include "daemon/exports/saved_model.h"
#include "daemon/exports/saved_network.h"

namespace lockstep::daemon {

struct TensorForm {
  std::string name;
  std::string dtype;  ///< float32, int8, ... as `lockstep ckpt show` names them
  std::vector<int64_t> shape;
};

TensorForm form_of(const std::string& name, const at::Tensor& tensor);

/// What an export wrote.
struct Written {
  std::string file;  ///< or the prefix of several files
  int64_t num_bytes = 0;
  std::string text;                 ///< for people: lines, the last with its line break
  std::vector<TensorForm> tensors;  ///< in the file, by the names that they have there
};

/// What an exported file carries of the quantization that its save was trained with.
enum class Quantization {
  kNone,     ///< nothing was quantized
  kFake,     ///< float32 weights, and how inputs and weights are rounded
  kInt8,     ///< int8 weights, and how inputs are rounded
  kLeftOut,  ///< nothing of it: who computes with the file gets other answers than evaluation did
};

/// What is known of a save beside its weights. Nothing where the save, or the records beside it, do
/// not say.
struct ExportFacts {
  std::string source;  ///< prefix of the save
  int64_t step = 0;
  std::optional<double> epoch;
  double sparsity = 0;            ///< masked share of the weights of 2 or more dimensions
  std::string parameters_sha256;  ///< as in a run's summary.json; empty: unknown
  std::vector<int64_t> input_shape;
  int64_t num_classes = 0;               ///< 0: shape and classes are unknown
  std::vector<std::string> class_names;  ///< by class number; empty: unknown
  Quantization quantization = Quantization::kNone;
  bool is_ema = false;                     ///< weights are their moving averages
  std::optional<RunFigures> figures = {};  ///< nothing: looked for in the records of the run
};

/// `network` null: the save does not say which network it belongs to.
ExportFacts facts_of(const SavedModel& saved, const SavedNetwork* network);

/// What the manifest says (docs/export.md lists its keys).
nlohmann::ordered_json manifest_json(const ExportFacts& facts, const std::string& format,
                                     const Written& written);

/// Writes WRITTEN.FILE.json (docs/export.md lists its keys) and returns its path.
std::string write_manifest(const ExportFacts& facts, const std::string& format,
                           const Written& written);

}  // namespace lockstep::daemon
