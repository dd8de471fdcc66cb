// A plug-in: two half circles that reach into each other, and a perceptron that tells them apart.
//   launch/mpirun.sh 2 lockstepd --config examples/estimator_plugin/run.yaml
//   --estimator=libmoons.so -- --width 32

#include <cmath>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/random.h"
#include "data/dataset.h"
#include "estimator/plugin.h"
#include "model/layers.h"

namespace {

using lockstep::data::TargetKind;

// --- The network: two linear layers.

class Perceptron final : public lockstep::model::Model {
 public:
  Perceptron(int64_t width, const lockstep::model::ModelInputs& data)
      : hidden_("hidden", data.input_size(), width, data.seed, &table_),
        output_("output", width, data.num_classes, data.seed, &table_) {}

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    return output_(at::tanh(hidden_(inputs_BX.flatten(1))));
  }

  // So that `lockstep ckpt export` can write it as TorchScript and ONNX.
  lockstep::model::Network network() const override {
    return {{.kind = lockstep::model::LayerKind::kFlatten},
            hidden_.description(),
            {.kind = lockstep::model::LayerKind::kTanh},
            output_.description()};
  }

 private:
  lockstep::model::Linear hidden_, output_;
};

// --- The data: points of the plane and on which moon they lie, 0 or 1, as one number.

std::unique_ptr<lockstep::data::Dataset> moons(int64_t num_samples, double noise, int64_t seed) {
  at::Tensor points_S2 = at::empty({num_samples, 2}, at::kFloat);
  at::Tensor moons_S1 = at::empty({num_samples, 1}, at::kFloat);
  float* point = points_S2.mutable_data_ptr<float>();
  float* moon = moons_S1.mutable_data_ptr<float>();
  const lockstep::CounterRandom random{seed, /*stream=*/1};
  for (int64_t i = 0; i < num_samples; ++i, point += 2) {
    const double angle = std::numbers::pi * random.uniform(3 * i);
    const double upper = i % 2 == 0 ? 1 : -1;
    const double x = upper * std::cos(angle) + (1 - upper) / 2;
    const double y = upper * std::sin(angle) + (1 - upper) / 4;
    point[0] = static_cast<float>(x + noise * (random.uniform(3 * i + 1) - 0.5));
    point[1] = static_cast<float>(y + noise * (random.uniform(3 * i + 2) - 0.5));
    moon[i] = upper > 0 ? 0 : 1;
  }
  return std::make_unique<lockstep::data::MemoryDataset>(points_S2, moons_S1, /*num_classes=*/1,
                                                         TargetKind::kValues);
}

// --- A loss of its own: the logistic loss, in which confident points count less.

at::Tensor focal_sum(const at::Tensor& logits_B1, const at::Tensor& moons_B1,
                     const lockstep::train::LossOptions&) {
  const at::Tensor right_B1 = ((2 * moons_B1 - 1) * logits_B1).sigmoid();
  return -((1 - right_B1).square() * right_B1.clamp_min(1e-7).log()).sum();
}

// --- A hook.

LOCKSTEP_FLAG(double, learning_rate);  // of the run, whatever set it

class TellTheLoss final : public lockstep::train::Hook {
 public:
  void begin(const lockstep::train::LoopStart& start) override {
    is_root_ = start.run.rank == 0;
    if (is_root_)
      lockstep::log::info("moons", fmt::format("learning rate {}", FLAGS_learning_rate.get()));
  }
  void after_evaluation(int64_t step, const lockstep::train::EvalResult& result) override {
    if (is_root_)
      lockstep::log::info("moons", fmt::format("loss {:.6f} at step {}", result.loss, step));
  }

 private:
  bool is_root_ = false;
};

// --- All of it.

class Moons final : public lockstep::EstimatorSpec {
 public:
  void read_flags(lockstep::ConfigReader* in) override {
    in->read("width", &width_, lockstep::count_from(1), "outputs of the hidden layer");
    in->read("samples", &num_samples_, lockstep::count_from(2), "points to train on");
    in->read("noise", &noise_, lockstep::between(0, 1), "how far points stray");
  }

  std::unique_ptr<lockstep::model::Model> model(const lockstep::model::ModelInputs& data) override {
    return std::make_unique<Perceptron>(width_, data);
  }

  std::unique_ptr<lockstep::data::Dataset> input(
      lockstep::data::DatasetUse use, const lockstep::data::DatasetInputs& inputs) override {
    const bool trains = use == lockstep::data::DatasetUse::kTraining;
    return moons(trains ? num_samples_ : 500, noise_, trains ? inputs.seed : inputs.seed + 1);
  }

  std::optional<lockstep::train::LossType> loss() override {
    return lockstep::train::LossType{
        .name = "moons_focal", .takes = {TargetKind::kValues}, .value = focal_sum};
  }

  std::vector<lockstep::metrics::StepMetric> metrics() override {
    return {{.name = "moons_train_loss_bits",
             .help = "Last training loss, in bits.",
             .kind = lockstep::metrics::StepMetric::kGauge,
             .scope = lockstep::metrics::StepMetric::kRun,
             .value = [](const lockstep::metrics::StepSample& step) -> std::optional<double> {
               if (!step.loss) return std::nullopt;
               return *step.loss / std::numbers::ln2;
             }}};
  }

  std::vector<lockstep::train::MakeHook> hooks() override {
    return {[] { return std::make_unique<TellTheLoss>(); }};
  }

 private:
  int64_t width_ = 16;
  int64_t num_samples_ = 2000;
  double noise_ = 0.4;
};

}  // namespace

LOCKSTEP_ESTIMATOR(Moons)
