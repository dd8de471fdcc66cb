// A plug-in for tests: a network `line`, two estimators, and every way to fail.

#include <cstdlib>
#include <stdexcept>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/flags.h"
#include "data/dataset.h"
#include "estimator/plugin.h"
#include "model/layers.h"

namespace {

using lockstep::ConfigReader;
using lockstep::Error;
using lockstep::ExitCode;

class Line final : public lockstep::model::Model {
 public:
  Line(int64_t num_outputs, const lockstep::model::ModelInputs& data, std::string fails = "")
      : fails_(std::move(fails)),
        linear_("linear", data.input_size(), num_outputs, data.seed, &table_) {}
  at::Tensor forward(const at::Tensor& inputs_BX) override {
    if (fails_ == "forward") throw std::out_of_range("no such place");
    return linear_(inputs_BX.flatten(1));
  }

 private:
  std::string fails_;
  lockstep::model::Linear linear_;
};

void fail(const std::string& how) {
  if (how == "error") throw Error(ExitCode::kBadData, "line", "this data is bad");
  if (how == "exception") throw std::out_of_range("no such thing");
  if (how == "torch") (void)at::arange(6).reshape({4, 4});
  if (how == "number") throw 42;
}

lockstep::model::MakeModel read_line(ConfigReader* in) {
  std::string fails;
  in->read("fails", &fails, "line: how making it fails");
  return [fails](const lockstep::model::ModelInputs& data) {
    fail(fails);
    return std::make_unique<Line>(data.num_classes, data, fails);
  };
}

class Bare : public lockstep::EstimatorSpec {
 public:
  std::unique_ptr<lockstep::model::Model> model(const lockstep::model::ModelInputs& data) override {
    return std::make_unique<Line>(data.num_classes, data);
  }
};

class Full final : public Bare {
 public:
  void read_flags(ConfigReader* in) override {
    in->read("samples", &num_samples_, lockstep::count_from(1), "how many");
    in->read("deep", &deep_, "whether it is deep");
    in->read("fails", &fails_, "the method that fails");
    in->read("loss", &loss_, "name of a loss of its own; else it takes binary");
    in->read("scale", &scale_, lockstep::at_least(0),
             "of that loss: its value where outputs are 0");
  }
  std::unique_ptr<lockstep::model::Model> model(const lockstep::model::ModelInputs& data) override {
    if (fails_ == "model") return nullptr;
    if (fails_ == "flag") (void)lockstep::flags::get<int64_t>("samples");  // where none are fixed
    return std::make_unique<Line>(deep_ ? 2 * data.num_classes : data.num_classes, data);
  }
  std::unique_ptr<lockstep::data::Dataset> input(lockstep::data::DatasetUse,
                                                 const lockstep::data::DatasetInputs&) override {
    if (fails_ == "input") fail("exception");
    return std::make_unique<lockstep::data::MemoryDataset>(at::zeros({num_samples_, 3}),
                                                           at::zeros({num_samples_, 1}), 1,
                                                           lockstep::data::TargetKind::kValues);
  }
  std::optional<lockstep::train::LossType> loss() override {
    if (fails_ == "loss") fail("error");
    if (!loss_.empty())
      return lockstep::train::LossType{
          .name = loss_,
          .takes = {lockstep::data::TargetKind::kValues},
          .value = [this](const at::Tensor& outputs_BO, const at::Tensor&,
                          const lockstep::train::LossOptions&) {
            return outputs_BO.sum().add(outputs_BO.size(0)).mul(scale_);
          }};
    return *lockstep::train::loss_types().find("binary");
  }
  std::vector<lockstep::metrics::StepMetric> metrics() override {
    return {{.name = "plugin_steps",
             .help = "Steps.",
             .value = [](const lockstep::metrics::StepSample&) { return 1.0; }}};
  }
  std::vector<lockstep::train::EvalMetricType> eval_metrics() override {
    return {{"plugin_score", [](ConfigReader*) -> lockstep::train::MakeEvalMetric {
               return
                   [](const lockstep::data::SampleSpec&) { return lockstep::train::EvalMetric(); };
             }}};
  }
  std::vector<lockstep::train::MakeHook> hooks() override {
    return {[] { return std::make_unique<lockstep::train::Hook>(); }};
  }

 private:
  int64_t num_samples_ = 8;
  bool deep_ = false;
  std::string fails_, loss_;
  double scale_ = 1;
};

void add_rows() {
  const char* how = std::getenv("LOCKSTEP_TEST_PLUGIN_FAILS");
  fail(how == nullptr ? "" : how);
  lockstep::model::model_types().add({.name = "line", .read = read_line});
  lockstep::estimator::estimator_types().add(
      {.name = "bare", .value = [] { return std::make_unique<Bare>(); }});
  lockstep::estimator::estimator_types().add(
      {.name = "full", .value = [] { return std::make_unique<Full>(); }});
}

}  // namespace

LOCKSTEP_PLUGIN(add_rows)
