#include "model/networks/model_table.h"

#include <utility>

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "base/error.h"
#include "model/networks/small_networks.h"
#include "model/networks/user_network.h"

namespace lockstep::model {

// Each of these is defined in a source of this folder, small ones together in small_networks.cpp.
ModelType gpt_type();
ModelType lenet_type();
ModelType mnist_net_type();
ModelType mobilenet_v1_type();
ModelType resnet18_type();
ModelType resnet50_type();
ModelType vgg11_type();
ModelType vgg16_type();
ModelType vit_type();

int64_t ModelInputs::input_size() const { return c10::multiply_integers(input_shape); }

NamedTable<ModelType>& model_types() {
  // Built at its first use, so that a plug-in can add rows at any time after.
  static NamedTable<ModelType> types = [] {
    NamedTable<ModelType> own("model.type");
    for (const auto type :
         {digits_net_type, mlp_type, cnn_type, mnist_net_type, lenet_type, vgg11_type, vgg16_type,
          resnet18_type, resnet50_type, mobilenet_v1_type, vit_type, gpt_type}) {
      ModelType row = type();
      // Lockstep's networks do the same work in each pass. A TorchScript module may not.
      row.repeats_itself = true;
      own.add(std::move(row));
    }
    own.add(torchscript_type());
    return own;
  }();
  return types;
}

ModelOptions read_model_options(ConfigReader in) {
  // The default network needs no keys.
  ModelOptions options = digits_net();
  in.read_choice("type", &options.type, model_types().names(), "network (docs/models.md)");
  if (const ModelType* type = model_types().find(options.type)) options.make = type->read(&in);
  in.done();
  return options;
}

void require_fit(bool fits, const std::string& type, const std::string& wanted,
                 const ModelInputs& data) {
  if (!fits)
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{} takes {}; the data has {} [{}] and needs {} outputs: choose "
                            "another model or data set",
                            type, wanted, data.input_dtype == at::kLong ? "tokens" : "inputs",
                            fmt::join(data.input_shape, ", "), data.num_classes));
}

namespace {

/// True for grey or RGB images, which may have their channels last.
bool is_few(int64_t channels) { return channels == 1 || channels == 3; }

}  // namespace

ImageShape require_images(const ModelInputs& data, const std::string& type, int64_t least_extent,
                          bool may_be_last) {
  const std::vector<int64_t>& shape = data.input_shape;
  ImageShape image;
  const bool fits = shape.size() == 3 && data.input_dtype == at::kFloat;
  // Ambiguous shapes such as [3, 3, 3] count as channels first.
  if (fits && may_be_last && !is_few(shape[0]) && is_few(shape[2]))
    image = {.channels = shape[2], .rows = shape[0], .columns = shape[1], .channels_last = true};
  else if (fits)
    image = {.channels = shape[0], .rows = shape[1], .columns = shape[2]};
  require_fit(
      image.channels > 0 && image.rows >= least_extent && image.columns >= least_extent, type,
      fmt::format("images [channels, rows, columns]{} of at least {}x{}, not tokens",
                  may_be_last ? " or [rows, columns, channels]" : "", least_extent, least_extent),
      data);
  return image;
}

}  // namespace lockstep::model
