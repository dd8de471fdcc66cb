#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "infer/sparse/fusion.h"
#include "infer/sparse/layer.h"

namespace lockstep::infer {

/// Network of an ONNX file. Layers in which few weights are kept are computed with these only,
/// where that is faster. Float32 on the CPU, with ATen's threads. Not thread-safe.
class SparseNetwork {
 public:
  /// Computes the whole network in another way, for comparison.
  using Dense = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  /// Throws Error(kUsage) for an operator that is not supported.
  explicit SparseNetwork(OnnxGraph graph);

  /// Computes the outputs. `inputs` are in the order of the graph's.
  ///
  /// The first inputs decide which layers use kept weights only: both ways are measured once for
  /// each kind of layer, and for each power of two of samples up to 64. Then the whole network is
  /// compared with all weights, and with `dense` if it may be faster. Dimension 0 of inputs and
  /// outputs are the samples. Images are computed in parts of at most 8 whose activations fit the
  /// caches. Throws Error(kBadData) for inputs that do not fit.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const Dense& dense = {});
  /// Computes the outputs with all weights; int8 layers have no other way.
  std::vector<at::Tensor> run_dense(const std::vector<at::Tensor>& inputs);
  /// Computes them with all weights by operators that a tracer of TorchScript records. For networks
  /// without int8 layers.
  std::vector<at::Tensor> run_plain(const std::vector<at::Tensor>& inputs);
  bool has_integers() const { return has_integers_; }

  /// Returns a table of the layers for the last inputs: weight, share of kept weights, engine,
  /// microseconds of both. Empty before run().
  std::string explanation() const;

 private:
  struct Ways {
    explicit Ways(const Layer& layer);
    DenseLayer dense;
    std::unique_ptr<KeptLayer> kept;  ///< null: not worth a measurement
    double density = 0;
  };
  struct Operation {
    Step step;
    std::vector<size_t> inputs, outputs;  ///< values
    std::vector<size_t> last_used;        ///< values that no later operation uses
    std::unique_ptr<Ways> ways;           ///< null: no layer
    bool feeds_kept = false;              ///< a layer with kept weights may use the outputs
    bool goes_with_next = false;  ///< only the next operation uses the outputs, see run_with()
  };
  /// Decision for one layer, in microseconds; 0: not measured.
  struct Choice {
    bool is_kept = false;
    double dense_us = 0, kept_us = 0;
  };
  /// Computation of the whole network.
  enum class Way {
    kChosen,  ///< layer by layer as chosen
    kDense,   ///< float32 layers with all weights
    kOther,   ///< by Dense
  };
  struct Plan {
    std::vector<Choice> choices;  ///< by operation
    Way way = Way::kChosen;
    double dense_us = 0, kept_us = 0;
    int64_t num_samples = 0;
  };
  using Values = std::vector<Activations>;
  /// May replace the inputs by the same in another layout, for layers that follow.
  using RunLayer = std::function<LayerOutputs(size_t operation, Activations* inputs,
                                              const Activations& residual)>;

  std::vector<size_t> ids_of(const std::vector<std::string>& names);
  std::vector<at::Tensor> compute(const std::vector<at::Tensor>& inputs, const RunLayer& run_layer);
  void convert(const Layer& layer, const Activations& inputs, Activations* converted);
  static std::vector<int64_t> output_sizes(const Layer& layer, const Activations& inputs);
  Activations residual_of(const Layer& layer, Activations residual,
                          const std::vector<int64_t>& sizes);
  void run_layer(const Operation& operation, const RunLayer& run, Values* values);
  void run_operator(const Operation& operation, Values* values);
  LayerOutputs run_kept(const Operation& operation, Activations* inputs,
                        const Activations& residual);
  LayerOutputs run_chosen(const Plan& plan, size_t i, Activations* inputs,
                          const Activations& residual);
  at::Tensor add_larger(const Operation& operation, const at::Tensor& inputs,
                        const at::Tensor& residual);
  std::vector<at::Tensor> compute(const std::vector<at::Tensor>& inputs, const Plan& plan);
  int64_t num_at_once(const std::vector<at::Tensor>& inputs);
  Plan measured(const std::vector<at::Tensor>& inputs, const Dense& dense);
  static std::string kind_of(const Operation& operation, const Activations& inputs);
  Choice measure(Operation* operation, const Activations& inputs, const Activations& residual);

  std::map<std::string, size_t> ids_;  // values, by name
  std::vector<Operation> operations_;
  std::map<size_t, at::Tensor> constants_;
  std::vector<size_t> inputs_, outputs_;
  Workspace workspace_;
  Activations waiting_;        // inputs of a layer that is computed with the next
  bool may_pay_ = false;       // some layer keeps few weights
  bool has_integers_ = false;  // some layer is int8
  bool has_images_ = false;    // some layer is a convolution
  int64_t num_at_once_ = 0;    // images; 0: not known yet
  std::map<int64_t, Plan> plans_;
  const Plan* last_ = nullptr;
};

}  // namespace lockstep::infer
