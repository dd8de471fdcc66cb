#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/simd/simd.h"
#include "infer/sparse/kept_kernels.h"
#include "infer/sparse/planes.h"
#include "infer/sparse/quad_kernels.h"
#include "infer/sparse/quads.h"

/// Convolutions and linear layers, computed with all weights or with the kept ones.
namespace lockstep::infer {

/// Integers of a quantized layer. Outputs are the sums of products with the input's steps above its
/// zero, times a factor.
struct Integers {
  at::Tensor weight;     ///< int8, with the layer's shape
  at::Tensor factors_O;  ///< scales of weights and inputs, and what was fused
  Rounding inputs;
};

/// Convolution, linear layer or max pooling, and the operators that were fused into it: bias,
/// residual sum and clamp, in this order.
struct Layer {
  std::string name;
  bool is_linear = false;
  at::Tensor weight;  ///< [O, I / groups, kH, kW], float32; linear: [O, I, 1, 1]
  at::Tensor bias;    ///< [O]
  std::array<int64_t, 2> stride{1, 1}, dilation{1, 1};
  std::array<int64_t, 4> pads{};  ///< top, left, bottom, right
  int64_t groups = 1;
  bool takes_max = false;  ///< max pooling: a weight of 1 for each tap, one group per channel
  bool adds_residual = false;
  std::optional<Integers> integers;
  std::optional<Rounding>
      inner_rounding;  ///< with integers: outputs are rounded before the residual
  std::optional<Rounding> output_rounding;  ///< with integers: outputs are rounded, too
  bool keeps_values = true;                 ///< outputs that are rounded are needed as values, too
  float low = -std::numeric_limits<float>::infinity();  ///< outputs are clamped to these
  float high = std::numeric_limits<float>::infinity();

  bool clamps() const { return low > -std::numeric_limits<float>::infinity() || has_high(); }
  bool has_high() const { return high < std::numeric_limits<float>::infinity(); }
  /// Share of weights that are not zero.
  double density() const;
  /// Returns height and width of the outputs. Throws Error(kBadData) if the inputs are too small.
  std::array<int64_t, 2> output_size(int64_t height, int64_t width) const;
};

/// Outputs of a layer.
struct LayerOutputs {
  Activations values, bytes;  ///< as float32 and rounded; undefined unless the layer has them
};

/// Layer computed with all weights by oneDNN. Not thread-safe.
class DenseLayer {
 public:
  explicit DenseLayer(const Layer& layer) : layer_(layer) {}

  /// Computes the outputs. `residual` is undefined unless the layer adds one.
  at::Tensor run(const Activations& inputs, const Activations& residual);
  /// Computes them by operators that a tracer of TorchScript records.
  at::Tensor run_plain(const at::Tensor& inputs, const at::Tensor& residual) const;

 private:
  at::Tensor convolve(const at::Tensor& inputs, const at::Tensor& residual);

  const Layer& layer_;
  at::Tensor packed_;  // weight, laid out by oneDNN
};

/// Pixels of a tile; of a larger one, for layers with few channels of inputs.
constexpr int64_t kPixelsOfTile = 64, kPixelsOfLargeTile = 128;

/// Layer computed with the kept weights only. Not thread-safe.
class KeptLayer {
 public:
  /// References `layer`, which must outlive it.
  explicit KeptLayer(const Layer& layer, SimdPath path = fastest_simd_path());

  /// Returns the inputs in planes if the layer needs a copy of all pixels, else as they are.
  /// `workspace` gets this layer's padding, so that layouts suit other layers too.
  Activations prepared(const Activations& inputs, Workspace* workspace) const;
  /// Computes the outputs. Copies inputs whose layout does not suit. A layer with integers takes
  /// rounded inputs, and any residual.
  LayerOutputs run(const Activations& inputs, const Activations& residual, Workspace* workspace);
  /// Computes the outputs of `next`, which takes this layer's. Between them, pixels stay in the
  /// first caches. `residual` is that of `next`.
  LayerOutputs run_with(KeptLayer* next, const Activations& inputs, const Activations& residual,
                        Workspace* workspace);
  /// True if run_with() can compute the two.
  bool goes_with(const KeptLayer& next) const;

 private:
  /// Kept weight: its input plane (phase and channel), and its place relative to the output pixel.
  struct Tap {
    int32_t plane, dy, dx;
    bool operator==(const Tap&) const = default;
  };
  /// Offsets of the taps in a layout, and the mask of its pixels.
  struct Laid {
    Planes inputs, outputs;
    std::vector<int32_t> offsets_K;
    std::vector<uint32_t> mask;
  };

  /// Sizes of one call.
  struct Sizes {
    std::array<int64_t, 2> inputs, outputs;  ///< height and width, inputs of one phase
    std::array<int64_t, 2> padding;          ///< zero rows and columns that the inputs need
  };
  struct Kept {
    int32_t bits;  ///< of a float32, or the four int8 of a quad
    Tap tap;
  };
  bool has_quads() const { return layer_.integers.has_value(); }
  bool has_phases() const { return !takes_even_ && layer_.stride != std::array<int64_t, 2>{1, 1}; }
  std::vector<Kept> kept_of(int64_t output);
  std::vector<int32_t> ends_of_blocks(const std::vector<std::vector<Kept>>& kept_O) const;
  void divide(const std::vector<std::vector<Kept>>& kept_O);
  void set_factors();
  template <typename Allocate>
  LayerOutputs allocated(const Allocate& allocate) const;
  int32_t phase_of(std::array<int64_t, 2> first);
  Sizes sizes_of(const at::Tensor& inputs) const;
  bool suits(const Activations& inputs, const Sizes& sizes) const;
  int32_t padding_bits() const;
  at::Tensor outputs_in(const Planes& planes, const Activations& residual,
                        const at::Tensor& placed_residual, const Activations& inputs,
                        Workspace* workspace) const;
  Activations laid_out(const Activations& images, const Sizes& sizes, Workspace* workspace) const;
  const Laid& laid(const Planes& planes, const Sizes& sizes, const Workspace& workspace);
  std::pair<Activations, const Laid&> placed(const Activations& inputs, Workspace* workspace);
  at::Tensor placed_residual(const Activations& residual, const Planes& planes,
                             Workspace* workspace) const;
  void compute_range(const KeptWork& work, const Laid& where, int64_t begin_O, int64_t end_O,
                     int64_t begin_P, int64_t end_P) const;
  LayerOutputs run_samples(const Activations& inputs, const Activations& residual) const;
  KeptWork kept_work() const;
  QuadWork quad_work() const;
  int64_t pixels_of_tile() const;
  template <typename Pixels>
  void compute(int64_t num_pixels, size_t num_products, const Pixels& pixels) const;
  static bool divides_rows(int64_t num_pixels);

  const Layer& layer_;
  const SimdPath path_;
  const int64_t num_planes_;  ///< of inputs without phases: channels or quads
  /// Depthwise layer or pooling whose columns have stride 2: each second pixel is read in place,
  /// without phases.
  const bool takes_even_;
  std::vector<int64_t> begins_BO_;  ///< of KeptWork
  std::vector<int64_t> sums_O_;     ///< kept weights before each row
  int64_t num_blocks_ = 1;
  std::vector<int32_t> channels_O_;        ///< of the rows, from the shortest on
  std::vector<int32_t> bits_K_;            ///< of the weights
  std::vector<float> factors_O_, bias_O_;  ///< of sums of bytes
  std::vector<Tap> taps_K_;
  std::vector<int32_t> columns_K_;              ///< the planes of the taps
  std::vector<int32_t> offsets_of_tile_K_;      ///< of the taps, in a tile of the layer before
  std::vector<std::array<int64_t, 2>> phases_;  ///< first row and column; one phase without stride
  std::array<int64_t, 2> before_{}, after_{};   ///< largest reach of the taps in rows and columns
  std::vector<std::unique_ptr<Laid>> laid_;
};

}  // namespace lockstep::infer
