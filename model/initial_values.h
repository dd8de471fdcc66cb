#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// Distribution of a parameter's initial values. They are a pure function of (seed, name). Sums and
/// products that are exact on every machine compute them.
struct Initial {
  enum class Kind {
    kConstant,  ///< all equal `scale`
    kUniform,   ///< in ±scale
    kNormal,    ///< of mean 0 and standard deviation `scale`
    kFanIn,     ///< uniform in ±1/sqrt(inputs), as in torch::nn
    kFanOut,    ///< normal of variance 2/outputs: He et al., arXiv 1502.01852
    kXavier,    ///< uniform of variance 2/(inputs + outputs): Glorot, Bengio, 2010
  };
  Kind kind = Kind::kFanIn;
  double scale = 0;
};

inline Initial constant(double value) { return {Initial::Kind::kConstant, value}; }
inline Initial uniform(double bound) { return {Initial::Kind::kUniform, bound}; }
inline Initial normal(double deviation) { return {Initial::Kind::kNormal, deviation}; }

/// Returns a float32 leaf tensor that requires a gradient. The kinds by inputs and outputs use
/// those of a weight [O, I, ...]: the products of I, or of O, with the kernel's extents.
at::Tensor initial_parameter(const std::string& name, at::IntArrayRef shape, Initial values,
                             int64_t seed);

/// Product of all extents but the first: the number of inputs of one output of a weight [O, ...].
int64_t fan_in_of(at::IntArrayRef weight_shape);

}  // namespace lockstep::model
