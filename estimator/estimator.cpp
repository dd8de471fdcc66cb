// User code is always called through run_user_code(), so that its exceptions name the estimator.
#include "estimator/estimator.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/process.h"
#include "base/yaml/yaml_document.h"
#include "estimator/open_plugin.h"

namespace lockstep {

std::unique_ptr<data::Dataset> EstimatorSpec::input(data::DatasetUse use,
                                                    const data::DatasetInputs& /*inputs*/) {
  const char* key = use == data::DatasetUse::kTraining ? "data.train" : "data.eval";
  throw Error(ExitCode::kConfig, "estimator",
              fmt::format("{}: {{type: estimator}} needs data from the estimator, which has none: "
                          "name another type, or write its input()",
                          key));
}

namespace estimator {
namespace {

constexpr const char* kSection = "estimator";
constexpr const char* kOwner = "the estimator";  ///< of its rows

/// Estimators whose rows are in the tables. The code of those rows may refer to them.
std::vector<std::shared_ptr<EstimatorSpec>>& owners_of_rows() {
  static std::vector<std::shared_ptr<EstimatorSpec>> all;
  return all;
}

/// Reset between jobs; the tables drop these rows too (job_server/job_run.cpp).
const ProcessState estimators_of_run("estimators of the run", [] { owners_of_rows().clear(); });

/// True if both call the same code: the estimator returned a row of the table unchanged.
template <typename Result, typename... Arguments>
bool are_same_code(const std::function<Result(Arguments...)>& a,
                   const std::function<Result(Arguments...)>& b) {
  if (a.target_type() != b.target_type()) return false;
  using Pointer = Result (*)(Arguments...);
  const auto* const pointer = a.template target<Pointer>();
  return pointer == nullptr || *pointer == *b.template target<Pointer>();
}

template <typename Row>
const auto& function_of(const Row& row) {
  if constexpr (requires { row.value; })
    return row.value;
  else
    return row.read;
}

/// Adds a row of the estimator, replacing one that an earlier estimator left. A row of the table
/// that it returns unchanged remains the table's. Throws Error(kConfig) for the name of any other
/// row.
template <typename Row>
void put_row(NamedTable<Row>& table, Row row) {
  const Row* const known = table.find(row.name);
  if (known != nullptr && !table.belongs_to(row.name, kOwner) &&
      are_same_code(function_of(*known), function_of(row)))
    return;
  table.put(std::move(row), kOwner);
}

/// Returns the estimators that may be named: those of the plug-in, or all.
std::vector<std::string> choices_of(const std::string& path, const ConfigReader& in) {
  if (path.empty()) return estimator_types().names();
  const std::string file = path_beside(in.document(), path).string();
  const Plugin& plugin = open_plugin(file);
  if (plugin.estimators.empty())
    throw Error(
        ExitCode::kConfig, kSection,
        fmt::format(
            "{}: this plug-in has no estimator: its source needs LOCKSTEP_ESTIMATOR(...); a "
            "network of a plug-in is named by model: {{type: plugin, path: ..., name: ...}}",
            file));
  return plugin.estimators;
}

/// Returns the row's name; empty after a fault.
std::string read_name(ConfigReader* in, const std::vector<std::string>& choices) {
  std::string name = choices.size() == 1 ? choices.front() : "";
  const char* help = "estimator in it; default its only one";
  if (choices.empty())
    in->read("name", &name, help);
  else
    in->read_choice("name", &name, choices, help);
  if (in->lists_fields()) return name;
  if (choices.empty())
    in->fault("name", "no estimator: name a plug-in with 'estimator.path'");
  else if (name.empty())
    in->fault("name",
              fmt::format("'estimator.name' must name one of: {}", fmt::join(choices, ", ")));
  return choices.empty() ? "" : name;
}

}  // namespace

NamedTable<EstimatorType>& estimator_types() {
  static NamedTable<EstimatorType> types("estimator.name");
  return types;
}

Estimator Estimator::read(ConfigReader* in) {
  Estimator estimator;
  const bool is_named = in->has(kSection);
  ConfigReader section = in->section(kSection);
  if (!is_named && !in->lists_fields()) return estimator;
  std::string path;
  section.read("path", &path, "shared object with the estimator (docs/plugins.md)");
  const std::vector<std::string> choices = choices_of(path, section);
  const EstimatorType* type = estimator_types().find(read_name(&section, choices));
  if (type == nullptr) return estimator;  // unknown flags: no faults about them
  estimator.name_ = type->name;
  estimator.where_ = fmt::format("estimator {}{}", type->name, path.empty() ? "" : " of " + path);
  run_user_code(estimator.where_, [&] {
    estimator.spec_ = type->value();
    estimator.spec_->read_flags(&section);
  });
  section.done();
  if (!in->lists_fields()) estimator.add_rows();
  return estimator;
}

void Estimator::add_rows() {
  // Before the rows are added: their code may refer to the estimator.
  owners_of_rows().push_back(spec_);
  run_user_code(where_, [&] {
    if (std::optional<train::LossType> loss = spec_->loss()) {
      loss_ = loss->name;
      put_row(train::loss_types(), std::move(*loss));
    }
    for (metrics::StepMetric& metric : spec_->metrics())
      put_row(metrics::step_metrics(), std::move(metric));
    for (train::EvalMetricType& metric : spec_->eval_metrics())
      put_row(train::eval_metric_types(), std::move(metric));
    hooks_ = spec_->hooks();
  });
}

model::ModelOptions Estimator::read_model(ConfigReader* in) const {
  if (!is_there() || in->lists_fields()) return model::read_model_options(in->section("model"));
  if (in->has("model"))
    in->fault("model",
              fmt::format("{} provides the network: remove 'model' or 'estimator'", where_));
  // Marks the key as known; its fault is reported above.
  (void)in->take("model");
  return {name_, [spec = spec_, where = where_](const model::ModelInputs& data) {
            return run_user_code(where, [&] {
              std::unique_ptr<model::Model> model = spec->model(data);
              if (model == nullptr)
                throw Error(ExitCode::kConfig, kSection, "model() returned no network");
              return model;
            });
          }};
}

data::MakeDataset Estimator::make_input(data::DatasetUse use) const {
  return [spec = spec_, where = where_, use](const data::DatasetInputs& inputs) {
    return run_user_code(where, [&] {
      std::unique_ptr<data::Dataset> dataset = spec->input(use, inputs);
      if (dataset == nullptr)
        throw Error(ExitCode::kConfig, kSection, "input() returned no data set");
      return dataset;
    });
  };
}

void Estimator::put_into(data::DataOptions* data) const {
  if (!is_there()) return;
  if (data->train.type == kSection) data->train.make = make_input(data::DatasetUse::kTraining);
  if (data->eval && data->eval->type == kSection)
    data->eval->make = make_input(data::DatasetUse::kEvaluation);
}

void Estimator::put_into(train::TrainOptions* train) const {
  if (!loss_.empty() && train->loss == "auto") train->loss = loss_;
}

void Estimator::put_into(std::vector<train::MakeHook>* hooks) const {
  hooks->insert(hooks->end(), hooks_.begin(), hooks_.end());
}

}  // namespace estimator
}  // namespace lockstep
