#include "model/model.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "model/cnn.h"
#include "model/digits_net.h"
#include "model/mlp.h"

namespace lockstep::model {
namespace {

void require_fit(bool fits, const ModelOptions& options, const std::string& wanted,
                 const std::vector<int64_t>& shape, int64_t num_classes) {
  if (!fits)
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{} takes {}; the data has inputs [{}] and {} classes: choose another "
                            "model or data set",
                            options.type, wanted, fmt::join(shape, ", "), num_classes));
}

}  // namespace

ModelOptions read_model_options(ConfigReader in) {
  ModelOptions options;
  in.read_choice("type", &options.type, {"digits_net", "mlp", "cnn"}, "which network");
  if (options.type == "mlp") {
    in.require("layers");
    in.read("layers", &options.layers, between(1, 1e6),
            "mlp: widths from input to classes, e.g. [784, 4096, 10]");
    in.read_choice("activation", &options.activation, {"gelu", "tanh", "relu"},
                   "mlp: between the layers");
    if (in.has("layers") && options.layers.size() < 2)
      in.fault("layers", "'model.layers' needs at least two widths");
  }
  if (options.type == "cnn") {
    in.read("channels", &options.channels, between(1, 1e6),
            "cnn: outputs of each 3x3 convolution; after every second one the image is halved");
    in.read("hidden", &options.hidden, between(1, 1e6),
            "cnn: width of the linear layer before the classes");
    in.read("batch_norm", &options.batch_norm,
            "cnn: normalise what each convolution gives; train.batch_norm says over which samples");
    if (options.channels.empty())
      in.fault("channels", "'model.channels' needs at least one convolution");
  }
  in.done();
  return options;
}

std::unique_ptr<Model> make_model(const ModelOptions& options,
                                  const std::vector<int64_t>& input_shape, int64_t num_classes,
                                  int64_t seed) {
  if (options.type == "digits_net") {
    require_fit(input_shape == std::vector<int64_t>{1, 8, 8} && num_classes == 10, options,
                "inputs [1, 8, 8] and 10 classes", input_shape, num_classes);
    return std::make_unique<DigitsNet>(seed);
  }
  if (options.type == "cnn") {
    require_fit(Cnn::fits(input_shape, options.channels), options,
                fmt::format("images [channels, rows, columns] of at least {0}x{0}",
                            int64_t{1} << std::min<size_t>(options.channels.size() / 2, 62)),
                input_shape, num_classes);
    return std::make_unique<Cnn>(input_shape, options, num_classes, seed);
  }
  check(options.type == "mlp", "the reader lets only known models pass");
  int64_t num_inputs = 1;
  for (const int64_t extent : input_shape) num_inputs *= extent;
  require_fit(
      num_inputs == options.layers.front() && num_classes == options.layers.back(), options,
      fmt::format("{} inputs and {} classes", options.layers.front(), options.layers.back()),
      input_shape, num_classes);
  return std::make_unique<Mlp>(options.layers, options.activation, seed);
}

}  // namespace lockstep::model
