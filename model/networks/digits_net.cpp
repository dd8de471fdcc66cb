#include "model/networks/digits_net.h"

#include <ATen/ops/gelu.h>

namespace lockstep::model {

// Strides replace pooling: everything stays smooth.
DigitsNet::DigitsNet(int64_t seed)
    : conv0_("blocks.0.conv", 1, 16, 1, seed, &table_),
      conv1_("blocks.1.conv", 16, 32, 2, seed, &table_),
      conv2_("blocks.2.conv", 32, 64, 2, seed, &table_),
      classifier_("classifier", 64 * 2 * 2, 10, seed, &table_) {}

at::Tensor DigitsNet::forward(const at::Tensor& inputs_B1HW) {
  at::Tensor features = at::gelu(conv0_(inputs_B1HW));
  features = at::gelu(conv1_(features));
  features = at::gelu(conv2_(features));
  return classifier_(features.flatten(1));
}

Network DigitsNet::network() const {
  return {conv0_.description(),          {.kind = LayerKind::kGelu}, conv1_.description(),
          {.kind = LayerKind::kGelu},    conv2_.description(),       {.kind = LayerKind::kGelu},
          {.kind = LayerKind::kFlatten}, classifier_.description()};
}

ModelOptions digits_net() {
  return {"digits_net", [](const ModelInputs& data) {
            require_fit(data.input_shape == std::vector<int64_t>{1, 8, 8} &&
                            data.num_classes == 10 && data.input_dtype == at::kFloat,
                        "digits_net", "inputs [1, 8, 8] and 10 classes", data);
            return std::make_unique<DigitsNet>(data.seed);
          }};
}

ModelType digits_net_type() {
  return {"digits_net", [](ConfigReader*) { return digits_net().make; }};
}

}  // namespace lockstep::model
