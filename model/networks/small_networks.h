#pragma once

#include <string>
#include <vector>

#include "model/networks/model_table.h"

/// Small networks: digits_net, mlp and cnn.
namespace lockstep::model {

ModelOptions digits_net();
ModelType digits_net_type();

struct MlpOptions {
  std::vector<int64_t> layers;      ///< widths: inputs, hidden layers, classes; at least two
  std::string activation = "gelu";  ///< gelu | tanh | relu
};

ModelOptions mlp(const MlpOptions& options);
ModelType mlp_type();

struct CnnOptions {
  std::vector<int64_t> channels = {64, 64, 128,
                                   128};  ///< outputs of each convolution; at least one
  int64_t hidden = 240;                   ///< width before the classifier
  bool batch_norm = false;                ///< between convolution and ReLU
};

ModelOptions cnn(const CnnOptions& options = {});
ModelType cnn_type();

}  // namespace lockstep::model
