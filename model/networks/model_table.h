#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "model/model.h"

/// Table of the networks that `model.type` can name, and checks of the data they are built for.
namespace lockstep::model {

/// Properties of the data that a network is built for. X = shape of one input, C = classes.
struct ModelInputs {
  std::vector<int64_t> input_shape;  ///< X
  int64_t num_classes = 0;  ///< C; or the size of the vocabulary, or of a target without classes
  int64_t seed = 0;         ///< for the initial values
  at::ScalarType input_dtype = at::kFloat;  ///< int64 for tokens
  /// Two samples as a batch, targets included. Empty: input_shape describes the batch.
  ForwardArguments example = {};
  bool may_be_frozen = false;  ///< a network without trained parameters is accepted: a teacher

  int64_t input_size() const;  ///< product of X
};

/// Creates a network with the options that were read for it. Throws Error(kConfig) if the data's
/// shape or number of classes does not fit, see require_fit().
using MakeModel = std::function<std::unique_ptr<Model>(const ModelInputs& data)>;

/// Section `model` of the run file as read: a network and its options.
struct ModelOptions {
  std::string type;
  MakeModel make;
};

/// Row of the table. A new network needs a class derived from Model, its row, and
///
///   model_types().add({.name = "my_net", .read = [](ConfigReader* in) -> MakeModel {
///     int64_t width = 64;
///     in->read("width", &width, between(1, 1e6), "my_net: outputs of the hidden layer");
///     return [width](const ModelInputs& data) { return std::make_unique<MyNet>(width, data); };
///   }});
struct ModelType {
  std::string name;
  /// Reads this network's keys of the section. Each `help` text begins with the network's name.
  std::function<MakeModel(ConfigReader* in)> read;
  /// True if each training pass over samples of one shape does the same work. It must not depend on
  /// anything that the host counts, draws or reads back. A GPU may then replay a recording of it
  /// (train.cuda_graphs). Dropout is detected without this flag.
  bool repeats_itself = false;
};

/// Returns the table. Lockstep's own networks are its first rows.
NamedTable<ModelType>& model_types();

/// Reads the section; without a `type`, digits_net. Faults go to the reader's diagnostics.
ModelOptions read_model_options(ConfigReader in);

/// Throws Error(kConfig) unless the data fits: "cnn takes `wanted`; the data has ...".
void require_fit(bool fits, const std::string& type, const std::string& wanted,
                 const ModelInputs& data);

/// Shape of the images that a network is built for.
struct ImageShape {
  int64_t channels = 0, rows = 0, columns = 0;
  bool channels_last = false;  ///< [rows, columns, channels] in the data
};

/// Returns the shape of the data's images: [channels, rows, columns], or [rows, columns, 1 or 3] if
/// `may_be_last`. Throws require_fit()'s Error unless inputs are float images of at least
/// `least_extent` rows and columns. The text is like "resnet18 takes images [channels, rows,
/// columns] of ...".
ImageShape require_images(const ModelInputs& data, const std::string& type, int64_t least_extent,
                          bool may_be_last = false);

}  // namespace lockstep::model
