#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

#include "infer/saved_model.h"

namespace lockstep::tests {

/// float32 [2, 3], without two equal numbers.
inline at::Tensor weight_23() { return at::arange(1, 7, at::kFloat).reshape({2, 3}) / 7; }

/// TorchScript: inputs [B, 3] -> logits [B, 2] = inputs * weight_23, transposed.
inline torch::jit::Module line_module() {
  torch::jit::Module module("Line");
  module.register_parameter("weight", weight_23(), /*is_buffer=*/false);
  module.register_attribute("training", c10::BoolType::get(), false);
  module.define(
      "def forward(self, inputs: Tensor) -> Tensor:\n    return torch.linear(inputs, "
      "self.weight)\n");
  return module;
}

inline infer::IoNodes line_nodes() {
  return {{{.name = "inputs", .shape = {infer::IoNode::kAny, 3}}},
          {{.name = "logits", .shape = {infer::IoNode::kAny, 2}}}};
}

inline infer::LoadedNetwork line_network() {
  return {.source = "line",
          .step = 7,
          .nodes = line_nodes(),
          .module = std::make_shared<torch::jit::Module>(line_module())};
}

/// A map of `inputs`, [num_samples, 3], whose numbers continue from `first`.
inline coord::DataMap feed_from(double first, int64_t num_samples) {
  coord::DataMap feed;
  feed.put("inputs", at::arange(first, first + 3.0 * static_cast<double>(num_samples), at::kFloat)
                         .reshape({num_samples, 3}));
  return feed;
}

inline at::Tensor tensor_in(const coord::DataMap& map, const std::string& key) {
  return std::get<at::Tensor>(*map.find(key));
}

}  // namespace lockstep::tests
