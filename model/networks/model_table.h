#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "model/model.h"

/// Table of the networks that `model.type` of a run file may name.
namespace lockstep::model {

/// What a network is made for. Symbols: X = the shape of one input, C = classes.
struct ModelInputs {
  std::vector<int64_t> input_shape;  ///< X
  int64_t num_classes = 0;  ///< C; tokens of the vocabulary; numbers of a target that is no class
  int64_t seed = 0;         ///< of the initial values
  at::ScalarType input_dtype = at::kFloat;  ///< int64 for tokens

  int64_t input_size() const;  ///< product of X
};

/// Makes a network with the options that were read for it. Throws Error(kConfig) if the data's
/// shape or number of classes does not fit it, see require_fit().
using MakeModel = std::function<std::unique_ptr<Model>(const ModelInputs& data)>;

/// Section `model` of the run file, read: a network and its options.
struct ModelOptions {
  std::string type;
  MakeModel make;
};

/// One row. To add a network: a class derived from Model, its row, and
///
///   model_types().add({.name = "my_net", .read = [](ConfigReader* in) -> MakeModel {
///     int64_t width = 64;
///     in->read("width", &width, between(1, 1e6), "my_net: outputs of the hidden layer");
///     return [width](const ModelInputs& data) { return std::make_unique<MyNet>(width, data); };
///   }});
struct ModelType {
  std::string name;
  /// Reads the keys of the section that are this network's, each `help` beginning with its name.
  std::function<MakeModel(ConfigReader* in)> read;
  /// Each training pass over samples of one shape does the same work: nothing in it depends on what
  /// the host counts, draws or reads back, nor is the host to do anything in each. So a GPU may
  /// repeat it from a recording (train.cuda_graphs). Dropout is known without this.
  bool repeats_itself = false;
};

/// The table; Lockstep's own networks are its first rows.
NamedTable<ModelType>& model_types();

/// Reads the section; without a `type`, digits_net. Faults go where `in` sends them.
ModelOptions read_model_options(ConfigReader in);

/// Throws as options.make does.
std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelInputs& data);

/// Throws Error(kConfig) unless the data fits: "cnn takes `wanted`; the data has ...".
void require_fit(bool fits, const std::string& type, const std::string& wanted,
                 const ModelInputs& data);

}  // namespace lockstep::model
