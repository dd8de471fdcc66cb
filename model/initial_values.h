#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// How the first values of a parameter are drawn. They are a pure function of (seed, name), made of
/// sums and products that are exact on every machine.
struct Initial {
  enum class Kind {
    kConstant,  ///< `scale`
    kUniform,   ///< in ±scale
    kNormal,    ///< of mean 0 and standard deviation `scale`
    kFanIn,     ///< uniform in ±1/sqrt(inputs), as torch::nn's layers
    kFanOut,    ///< normal of variance 2/outputs: He et al., arXiv 1502.01852
    kXavier,    ///< uniform of variance 2/(inputs + outputs): Glorot, Bengio, 2010
  };
  Kind kind = Kind::kFanIn;
  double scale = 0;
};

inline Initial constant(double value) { return {Initial::Kind::kConstant, value}; }
inline Initial uniform(double bound) { return {Initial::Kind::kUniform, bound}; }
inline Initial normal(double deviation) { return {Initial::Kind::kNormal, deviation}; }

/// A float32 leaf that requires a gradient. Inputs and outputs of a kind are those of a weight
/// [O, I, ...]: the products of I and of O with the extents of the kernel.
at::Tensor initial_parameter(const std::string& name, at::IntArrayRef shape, Initial values,
                             int64_t seed);

/// The product of all extents but the first: what one output of a weight [O, ...] is made of.
int64_t fan_in_of(at::IntArrayRef weight_shape);

}  // namespace lockstep::model
