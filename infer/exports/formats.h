#pragma once

#include <cstdint>
#include <string>

#include "infer/exports/checkpoint_model.h"
#include "infer/exports/export.h"
#include "infer/exports/manifest.h"
#include "infer/exports/portable_network.h"

/// Writers of the formats: ONNX, TorchScript, programs of torch.export, safetensors, TensorFlow and
/// folders of transformers.
namespace lockstep::exports {

/// ONNX operator set of the exported files: the oldest one with LayerNormalization. It has no GELU,
/// which is composed with Erf.
inline constexpr int64_t kOnnxOperatorSet = 17;

/// Returns the bytes of an ONNX file. Input: `inputs`, float32 [batch, input_shape...], any batch.
/// Output: `logits` [batch, num_classes], equal to the model's own forward in evaluation within
/// rounding. For tokens, `inputs` is int64 [batch, tokens] and `logits` [batch, tokens,
/// num_classes], for any number of tokens that the network takes. Tensors have the model's names.
/// The facts are metadata. Throws Error(kUsage) for a layer that has no ONNX form, and as
/// require_onnx_room().
///
/// A quantized layer rounds its inputs and weights as training did, by QuantizeLinear and
/// DequantizeLinear. With `int8_weights` its weight is stored as int8 and only dequantized.
/// QuantizeLinear divides by the scale, where training multiplies by its inverse. So a value near
/// the middle between two steps may be rounded to the other one.
std::string onnx_bytes(const PortableNetwork& network, bool int8_weights = false);
/// Throws Error(kUsage) if the tensors do not fit into one ONNX file (2 GiB).
void require_onnx_room(const PortableNetwork& network);

/// Returns the bytes of a TorchScript archive. Its forward takes float32 inputs [batch,
/// input_shape...], or int64 tokens, and returns logits [batch, num_classes], as the model's own
/// forward in evaluation. Parameters and buffers have the model's names, as state_dict() in Python
/// shows.
///
/// A quantized layer rounds its inputs and weights by ATen's fake_quantize operators, as training
/// did. It has the buffers weight_scale and weight_zero_point. The facts are extra files with their
/// names. Throws Error(kUsage) for a layer that has no TorchScript form.
std::string torchscript_bytes(const PortableNetwork& network);

/// Returns the source of the archive's forward.
std::string torchscript_source(const PortableNetwork& network);

/// Writes a checkpoint's model to options.out_file. `network` is null if it cannot be rebuilt,
/// which only formats without a forward pass allow. Returns a description of the content.
using WriteExport = Written(const CheckpointModel& saved, const CheckpointNetwork* network,
                            const ExportOptions& options);

/// A safetensors file (docs/quantization.md names its tensors), with counts for each layer.
///
/// With `quantize`, weights of quantized layers become int8 with their scales, by the arithmetic
/// that training simulated. Throws Error(kUsage) if nothing was quantized or some layer's input was
/// never observed. Without `quantize`, weights stay float32 and the scales of quantized layers are
/// added. So training in another program can simulate int8 in the same way.
struct SafetensorsExport {
  static constexpr ExportFormat kFormat{
      .name = "safetensors", .quantizes = true, .packs_zeros = true};
  static WriteExport write;
};

/// A file that contains the network itself.
struct NetworkExport {
  static WriteExport write;
};
struct TorchScriptExport : NetworkExport {
  static constexpr ExportFormat kFormat{.name = "torchscript", .has_forward = true};
};
struct OnnxExport : NetworkExport {
  static constexpr ExportFormat kFormat{
      .name = "onnx", .has_forward = true, .quantizes = true, .calls_python = true};
};

/// A network in Python as torch.export traces it: for any number of samples, in evaluation. Also
/// writes its ONNX file, since the format is that of the options. Throws Error(kUsage) for another
/// network and for quantized layers. Throws Error(kConfig), with file and line of the user's code,
/// if it cannot be traced or a package is missing.
struct ExportedProgram {
  static constexpr ExportFormat kFormat{.name = "pt2", .has_forward = true, .calls_python = true};
  static WriteExport write;
};

/// True for a user's class in Python.
bool is_in_python(const model::Model& model);

/// TensorFlow files of one shard. These are OUT_FILE-STEP.index and .data-00000-of-00001, and the
/// state file `checkpoint` in the same folder. Tensors are whole and dense, even if the checkpoint
/// stores slices or masks. Names and object graph are those of Lockstep's checkpoints, so
/// tf.train.Checkpoint restores them. With `all`, they contain everything (optimizer, averages,
/// masks, positions, texts), otherwise the variables of the model.
///
/// Throws Error(kUsage) if the files would be in the folder of the checkpoint itself, whose state
/// file belongs to its run. Throws it too for tensors that Lockstep does not write (lists of
/// texts). Throws Error(kIo) if the files cannot be written.
struct TensorFlowExport {
  static constexpr ExportFormat kFormat{
      .name = "tensorflow", .has_rounding = false, .takes_all = true};
  static WriteExport write;
};

/// Folder as save_pretrained() of transformers writes it: tensors in one safetensors file, or in
/// shards with an index, and config.json if the network's module in Python has one. It appears when
/// it is complete. Throws Error(kCannotCreate) if the folder exists and is not empty.
struct PretrainedExport {
  static constexpr ExportFormat kFormat{
      .name = "pretrained", .has_rounding = false, .has_shards = true, .calls_python = true};
  static WriteExport write;
};

/// List of all formats, as Of<format, ...>, in the order of messages.
template <template <typename...> typename Of>
using OfAllFormats = Of<SafetensorsExport, TorchScriptExport, OnnxExport, ExportedProgram,
                        TensorFlowExport, PretrainedExport>;

}  // namespace lockstep::exports
