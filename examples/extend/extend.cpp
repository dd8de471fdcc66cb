// lockstepd with a network, a data set, a modifier, a metric of steps, one of evaluations and a
// callback of its own: each is a row of a table, added before lockstepd reads the run file.
//   launch/mpirun.sh 2 build/default/examples/extend/extend --config examples/extend/run.yaml

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "coord/callback_types.h"
#include "daemon/lockstepd.h"
#include "data/dataset.h"
#include "data/dataset_table.h"
#include "metrics/step_metrics.h"
#include "metrics/tensorboard/summary.h"
#include "model/layers.h"
#include "model/networks/model_table.h"
#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/timeline_builder.h"
#include "train/eval_metrics.h"

namespace {

using lockstep::ConfigReader;

// --- A network: two linear layers, with a way around the first.

class ResidualMlp final : public lockstep::model::Model {
 public:
  ResidualMlp(const lockstep::model::ModelInputs& data)
      : block_("block", data.input_size(), data.input_size(), data.seed, &table_),
        classifier_("classifier", data.input_size(), data.num_classes, data.seed, &table_) {}

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    const at::Tensor values = inputs_BX.flatten(1);
    lockstep::summary::scalar("batch_size", static_cast<double>(values.size(0)));
    return classifier_(values + at::gelu(block_(values)));
  }

 private:
  lockstep::model::Linear block_, classifier_;
};

lockstep::model::MakeModel read_residual_mlp(ConfigReader*) {
  return
      [](const lockstep::model::ModelInputs& data) { return std::make_unique<ResidualMlp>(data); };
}

// --- A data set: points of a plane, and on which side of a line they lie.

at::Tensor points(int64_t num_samples) {
  at::Tensor points_S2 = at::empty({num_samples, 2}, at::kFloat);
  const lockstep::CounterRandom random{/*seed=*/1, /*stream=*/1};
  float* values = points_S2.mutable_data_ptr<float>();
  for (int64_t i = 0; i < points_S2.numel(); ++i)
    values[i] = static_cast<float>(2 * random.uniform(i) - 1);
  return points_S2;
}

lockstep::data::MakeDataset read_half_planes(ConfigReader* in, lockstep::data::DatasetUse) {
  int64_t samples = 1024;
  in->read("samples", &samples, lockstep::count_from(1), "half_planes: number of points");
  return [samples](const lockstep::data::DatasetInputs&) {
    const at::Tensor points_S2 = points(samples);
    const at::Tensor sides_S = points_S2.sum(1).gt(0).to(at::kLong);
    return std::make_unique<lockstep::data::MemoryDataset>(points_S2, sides_S, /*num_classes=*/2);
  };
}

// --- A modifier: multiplies weights once, at its start.

class Scale final : public lockstep::recal::Modifier {
 public:
  struct Options {
    lockstep::recal::ParamSelector params;
    double factor = 1;
    std::optional<lockstep::recal::TrainTime> start;
  };

  Scale(Options options, std::string tag, lockstep::SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  lockstep::recal::Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(lockstep::recal::StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override {
    return fmt::format("scales {} by {}", options_.params.text(), options_.factor);
  }

  void compile(lockstep::recal::TimelineBuilder* builder) const override {
    const int64_t step = builder->step_of(*options_.start);
    const int params = builder->claim_values({options_.params}, {step, step + 1});
    const double factor = options_.factor;
    builder->add_transform(
        step, params,
        {.name = fmt::format("scale by {}", factor),
         .apply = [factor](at::Tensor& values, int64_t) { values.mul_(factor); }});
  }

 private:
  Options options_;
};

lockstep::recal::Modifiers read_scale(ConfigReader* in, const lockstep::SourceLocation& location) {
  Scale::Options options;
  options.params.read(in, "params");
  in->require("factor");
  in->read("factor", &options.factor, lockstep::between(0, 1000), "what weights are multiplied by");
  lockstep::recal::read_moment(in, {.name = "start", .help = "when"}, &options.start);
  in->done();
  return lockstep::recal::one_modifier<Scale>(std::move(options), *in, location);
}

// --- A metric: a function of a step's numbers.

lockstep::metrics::StepMetric perplexity() {
  return {.name = "extend_train_perplexity",
          .help = "Exponential of the last training loss.",
          .kind = lockstep::metrics::StepMetric::kGauge,
          .scope = lockstep::metrics::StepMetric::kRun,
          .value = [](const lockstep::metrics::StepSample& step) -> std::optional<double> {
            if (!step.loss) return std::nullopt;
            return std::exp(*step.loss);
          }};
}

// --- A metric of evaluations: how sure the network is, right or wrong.

lockstep::train::EvalMetric confidence(const lockstep::data::SampleSpec& spec) {
  lockstep::train::require_classes("confidence", spec);
  return {.num_sums = 2,
          .sums =
              [](const lockstep::coord::DataMap& data) {
                const at::Tensor& outputs_BC = data.tensor("logits");
                const at::Tensor highest_B =
                    std::get<0>(at::softmax(outputs_BC, 1, at::kDouble).max(1));
                const at::Tensor sum = highest_B.sum();
                return at::stack({sum, at::full_like(sum, highest_B.size(0))});
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<lockstep::train::EvalValue> {
            return {{"confidence", sums_S[0] / sums_S[1]}};
          }};
}

// --- A callback: tells the lowest loss, from a step on, and shows TensorBoard how long the network
// takes, over all ranks.

class LowestLoss final : public lockstep::coord::Callback {
 public:
  explicit LowestLoss(int64_t after_step) : after_step_(after_step) {}

  std::vector<std::string> incoming_keys() const override { return {"loss", "step"}; }
  lockstep::coord::RunOn run_on() const override { return lockstep::coord::RunOn::kAll; }
  std::optional<lockstep::coord::DataMap> on_iteration_end(
      const lockstep::coord::DataMap& data) override {
    const auto loss = data.tensor("loss").item<double>();
    const auto step = data.tensor("step").item<int64_t>();
    lockstep::summary::mean_scalar("network_seconds", context().iteration_info.execution_time);
    if (step > after_step_ && loss < loss_) {
      loss_ = loss;
      step_ = step;
    }
    return lockstep::coord::DataMap();
  }
  void end() override {
    if (context().rank != 0) return;
    lockstep::log::info("lowest_loss", fmt::format("{:.6f} at step {}", loss_, step_));
  }

 private:
  int64_t after_step_;
  double loss_ = std::numeric_limits<double>::infinity();
  int64_t step_ = 0;
};

lockstep::coord::MakeCallback read_lowest_loss(ConfigReader* in) {
  int64_t after_step = 0;
  in->read("after_step", &after_step, lockstep::count_from(0),
           "lowest_loss: steps that do not count");
  return [after_step](const lockstep::coord::Services&) {
    return std::make_unique<LowestLoss>(after_step);
  };
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::model::model_types().add({.name = "residual_mlp", .read = read_residual_mlp});
  lockstep::data::dataset_types().add({.name = "half_planes", .read = read_half_planes});
  lockstep::recal::modifier_kinds().add({.name = "ScaleModifier", .read = read_scale});
  lockstep::metrics::step_metrics().add(perplexity());
  lockstep::train::eval_metric_types().add(
      {.name = "confidence", .read = [](ConfigReader*) { return confidence; }});
  lockstep::coord::callback_types().add(
      {.name = "lowest_loss", .read = read_lowest_loss, .modes = {"train"}});
  return lockstep::daemon::lockstepd_main(argc, argv);
}
