// An estimator in a user's own program: classifies points of a square as inside or outside a
// circle.
//   launch/mpirun.sh 2 build/default/examples/train_estimator/circle --model_dir models
//   --train_steps 400 --learning_rate 0.05 -- --width 32

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/random.h"
#include "daemon/train_estimator.h"
#include "data/dataset.h"
#include "model/layers.h"

namespace {

LOCKSTEP_FLAG(double, learning_rate);
LOCKSTEP_FLAG(int64_t, batch_size);

class Perceptron final : public lockstep::model::Model {
 public:
  Perceptron(int64_t width, const lockstep::model::ModelInputs& data)
      : hidden_("hidden", data.input_size(), width, data.seed, &table_),
        output_("output", width, data.num_classes, data.seed, &table_) {}

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    return output_(at::tanh(hidden_(inputs_BX)));
  }

 private:
  lockstep::model::Linear hidden_, output_;
};

std::unique_ptr<lockstep::data::Dataset> points(int64_t num_samples, int64_t seed) {
  at::Tensor points_S2 = at::empty({num_samples, 2}, at::kFloat);
  at::Tensor classes_S = at::empty({num_samples}, at::kLong);
  float* point = points_S2.mutable_data_ptr<float>();
  auto* is_inside = classes_S.mutable_data_ptr<int64_t>();
  const lockstep::CounterRandom random{seed, /*stream=*/1};
  for (int64_t i = 0; i < num_samples; ++i, point += 2) {
    point[0] = static_cast<float>(2 * random.uniform(2 * i) - 1);
    point[1] = static_cast<float>(2 * random.uniform(2 * i + 1) - 1);
    is_inside[i] = point[0] * point[0] + point[1] * point[1] < 0.6F ? 1 : 0;
  }
  return std::make_unique<lockstep::data::MemoryDataset>(points_S2, classes_S, /*num_classes=*/2);
}

class Circle final : public lockstep::EstimatorSpec {
 public:
  void read_flags(lockstep::ConfigReader* in) override {
    in->read("width", &width_, lockstep::count_from(1), "outputs of the hidden layer");
  }

  std::unique_ptr<lockstep::model::Model> model(const lockstep::model::ModelInputs& data) override {
    lockstep::log::info("circle", fmt::format("width {}, learning rate {}, batches of {}", width_,
                                              FLAGS_learning_rate.get(), FLAGS_batch_size.get()));
    return std::make_unique<Perceptron>(width_, data);
  }

  std::unique_ptr<lockstep::data::Dataset> input(
      lockstep::data::DatasetUse use, const lockstep::data::DatasetInputs& inputs) override {
    const bool trains = use == lockstep::data::DatasetUse::kTraining;
    return trains ? points(2000, inputs.seed) : points(500, inputs.seed + 1);
  }

 private:
  int64_t width_ = 16;
};

}  // namespace

int main(int argc, char** argv) {
  lockstep::flags::set("batch_size", "50");  // where the command line says nothing
  lockstep::flags::set("optimizer", "adam");
  return lockstep::train_estimator::train(lockstep::train_estimator::spec_of<Circle>(),
                                          {argv + 1, argv + argc});
}
