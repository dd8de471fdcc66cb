// Metrics of classes, and the callbacks that show them: as KPIs (topk) and as a table (confusion).
#include "coord/eval_metric.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "coord/callback_types.h"
#include "metrics/tensorboard/event_file.h"

namespace lockstep::coord {

at::Tensor top_k_sums(const ClassOutputs& batch, const std::vector<int64_t>& ks) {
  const at::Tensor own_N1 = batch.outputs_NC.gather(1, batch.classes_N.unsqueeze(1));
  // A class is among the top k if fewer than k outputs are higher. So ties count as correct, and
  // nothing is sorted.
  const at::Tensor num_higher_N = batch.outputs_NC.gt(own_N1).sum(1);
  // A NaN compares as not higher, so it would count as correct.
  const at::Tensor is_finite_N = batch.outputs_NC.isfinite().all(1);
  std::vector<at::Tensor> sums;
  for (const int64_t k : ks)
    sums.push_back(num_higher_N.lt(k).logical_and(is_finite_N).sum().to(at::kDouble));
  sums.push_back(at::full_like(sums.front(), num_higher_N.size(0)));
  return at::stack(sums);
}

std::vector<EvalValue> top_k_values(const at::Tensor& sums_S, const std::vector<int64_t>& ks) {
  std::vector<EvalValue> found;
  for (const int64_t k : ks)
    found.push_back(
        {fmt::format("top_{}", k), sums_S[static_cast<int64_t>(found.size())] / sums_S[-1]});
  return found;
}

void count_confusion(const at::Tensor& classes_N, const at::Tensor& predicted_N,
                     int64_t num_classes, const at::Tensor& counts) {
  const at::Tensor cell_N = classes_N * num_classes + predicted_N;
  counts.scatter_add_(0, cell_N, at::ones_like(cell_N, counts.options()));
}

KpiEvaluator::KpiEvaluator(EvalMetric metric, Services services)
    : metric_(std::move(metric)),
      services_(std::move(services)),
      sums_(at::zeros({metric_.num_sums + 1}, at::kDouble)) {}

void KpiEvaluator::begin() {
  sums_.zero_();
  summary_step_ = context().summary_step;
  if (context().is_training() && context().rank == 0)
    log::warning("callbacks",
                 "KPIs are computed in each step of training, which may be slow; modes: [eval] "
                 "computes them only in evaluations");
}

std::optional<DataMap> KpiEvaluator::on_iteration_end(const DataMap& data) {
  const at::NoGradGuard no_grad;  // the sums must not keep the network's graph
  sums_.narrow(0, 0, metric_.num_sums).add_(metric_.sums(data).cpu());
  sums_[-1].add_(1);
  summary_step_ = context().summary_step;
  return DataMap();
}

void KpiEvaluator::show() {
  // Reset before the collective, so that a failed one does not count samples twice.
  const at::Tensor sums = std::exchange(sums_, at::zeros_like(sums_));
  // Every rank must call this collective, even one without iterations.
  if (services_.sum_over_ranks)
    services_.sum_over_ranks({sums.mutable_data_ptr<double>(), static_cast<size_t>(sums.numel())});
  if (sums[-1].item<double>() == 0) return;  // no iteration since the last values on any rank
  std::vector<EvalValue> kpis = metric_.values(sums.narrow(0, 0, metric_.num_sums));
  std::erase_if(kpis, [](const EvalValue& kpi) { return kpi.value.dim() > 0; });
  std::vector<std::string> tags;
  std::vector<metrics::Scalar> scalars;
  for (const EvalValue& kpi : kpis) tags.push_back("kpi/" + kpi.name);
  for (size_t i = 0; i < kpis.size(); ++i) {
    const auto value = kpis[i].value.item<double>();
    values_[kpis[i].name] = value;
    scalars.push_back({tags[i], value});
    if (services_.set_kpi) services_.set_kpi(kpis[i].name, value);
  }
  // The values are equal on all ranks; one curve is enough.
  if (context().summary_writer != nullptr && context().rank == 0)
    context().summary_writer->add(summary_step_, scalars);
}

void KpiEvaluator::end() {
  if (!context().is_broken_off) show();  // values of some batches are not those of the data set
}

std::vector<std::string> KpiEvaluator::kpi_names() const {
  std::vector<std::string> names;
  try {
    // Sums of 1 avoid a division by 0; only the names are used.
    for (const EvalValue& kpi : metric_.values(at::ones({metric_.num_sums}, at::kDouble)))
      if (kpi.value.dim() == 0) names.push_back(kpi.name);
  } catch (const std::exception&) {  // it accepts only its own sums
    names.clear();
  }
  return names;
}

namespace {

/// Returns outputs [samples, classes] and classes [samples]. Throws Error(kBadData) unless shapes
/// and classes fit.
ClassOutputs class_outputs(const DataMap& data, const std::string& logits,
                           const std::string& labels) {
  const at::Tensor outputs_BC = data.tensor(logits).detach();
  const at::Tensor labels_B = data.tensor(labels).to(outputs_BC.device(), at::kLong);
  if (outputs_BC.dim() != 2 || labels_B.dim() != 1 || labels_B.size(0) != outputs_BC.size(0))
    refuse_data(fmt::format(
        "'{}' has {} dimensions and {} numbers, '{}' {} and {}; expected [samples, classes] and "
        "[samples]",
        logits, outputs_BC.dim(), outputs_BC.numel(), labels, labels_B.dim(), labels_B.numel()));
  if (labels_B.numel() == 0) return {outputs_BC, labels_B};
  const auto lowest = labels_B.min().item<int64_t>(), highest = labels_B.max().item<int64_t>();
  if (lowest < 0 || highest >= outputs_BC.size(1))
    refuse_data(fmt::format("'{}' contains class {}, but '{}' has outputs for classes 0 to {}",
                            labels, lowest < 0 ? lowest : highest, logits, outputs_BC.size(1) - 1));
  return {outputs_BC, labels_B};
}

/// Confusion matrix: samples by class (row) and by the class with the highest output (column), over
/// all ranks and iterations. Writes confusion.csv at the end.
class Confusion : public Callback {
 public:
  Confusion(std::string logits, std::string labels, int64_t num_classes, Services services)
      : logits_(std::move(logits)),
        labels_(std::move(labels)),
        num_classes_(num_classes),
        counts_(at::zeros({num_classes * num_classes}, at::kDouble)),
        services_(std::move(services)) {
    if (labels_ == "targets" && num_classes_ < services_.num_classes)
      throw Error(ExitCode::kConfig, "callbacks",
                  fmt::format("callback 'confusion' has num_classes {}, and the targets have {} "
                              "classes: set num_classes to {}",
                              num_classes_, services_.num_classes, services_.num_classes))
          .everywhere();
  }

  std::vector<std::string> incoming_keys() const override { return {logits_, labels_}; }
  RunOn run_on() const override { return RunOn::kAll; }
  std::string stores_as() const override { return "confusion.csv"; }

  void begin() override { counts_.zero_(); }

  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    // argmax takes the first of equal outputs.
    const at::Tensor chosen_B = on_cpu(data.tensor(logits_)).argmax(-1).to(at::kLong);
    const at::Tensor labels_B = on_cpu(data.tensor(labels_)).to(at::kLong);
    if (chosen_B.dim() != 1 || chosen_B.sizes() != labels_B.sizes())
      refuse_data(fmt::format(
          "'{}' has {} samples and '{}' has {}; expected [samples, classes] and [samples]", logits_,
          chosen_B.numel(), labels_, labels_B.numel()));
    require_classes(at::stack({labels_B, chosen_B}, 1));
    count_confusion(labels_B, chosen_B, num_classes_, counts_);
    return DataMap();
  }

  void end() override {
    // Before the collective, because after an error the other ranks may not call it.
    if (is_incomplete_pass(context(), "confusion.csv")) return;
    if (services_.sum_over_ranks)
      services_.sum_over_ranks(
          {counts_.mutable_data_ptr<double>(), static_cast<size_t>(counts_.numel())});
    if (context().rank != 0) return;
    files::make_folders(context().log_dir);
    files::write_atomically(context().log_dir / "confusion.csv", table());
  }

 private:
  /// Returns the table, with the class names in the first line and column if there are any.
  std::string table() const {
    const auto num_classes = static_cast<size_t>(num_classes_);
    const std::vector<std::string>& names = services_.class_names;
    const bool has_names = names.size() == num_classes;
    const auto* const counts = counts_.const_data_ptr<double>();
    std::string text;
    if (has_names) {
      std::vector<std::string> heading = names;
      heading.insert(heading.begin(), "");  // the corner
      text = csv_line(heading);
    }
    for (size_t row = 0; row < num_classes; ++row) {
      std::vector<std::string> fields;
      if (has_names) fields.push_back(names[row]);
      for (size_t column = 0; column < num_classes; ++column)
        fields.push_back(fmt::format("{:.0f}", counts[row * num_classes + column]));
      text += csv_line(fields);
    }
    return text;
  }

  /// Throws Error(kBadData) with the first number that is not a class.
  void require_classes(const at::Tensor& numbers_B2) const {
    const at::Tensor wrong_K =
        numbers_B2.masked_select(numbers_B2.lt(0).logical_or(numbers_B2.ge(num_classes_)));
    if (wrong_K.numel() > 0)
      refuse_data(fmt::format("there is a sample of class {}, and num_classes is {}",
                              wrong_K[0].item<int64_t>(), num_classes_));
  }

  const std::string logits_, labels_;
  const int64_t num_classes_;
  at::Tensor counts_;  // float64 [num_classes * num_classes]
  const Services services_;
};

}  // namespace

CallbackType topk() {
  return {.name = "topk",
          .read = [](ConfigReader* in) -> MakeCallback {
            std::string logits = "logits", labels = "targets";
            std::vector<int64_t> ks = {1, 5};
            in->read("outputs", &logits, "topk: key of outputs [samples, classes]");
            in->read("labels", &labels, "topk: key of classes [samples]");
            in->read("k", &ks, count_from(1), "topk: values of k");
            if (ks.empty()) in->fault("k", "'k' is empty: give at least one number");
            std::sort(ks.begin(), ks.end());
            ks.erase(std::unique(ks.begin(), ks.end()), ks.end());
            EvalMetric metric{
                .incoming_keys = {logits, labels},
                .num_sums = static_cast<int64_t>(ks.size()) + 1,
                .sums =
                    [=](const DataMap& data) {
                      return top_k_sums(class_outputs(data, logits, labels), ks);
                    },
                .values = [ks](const at::Tensor& sums_S) { return top_k_values(sums_S, ks); }};
            return [metric](const Services& services) {
              return std::make_unique<KpiEvaluator>(metric, services);
            };
          },
          .modes = {"eval"}};
}

CallbackType confusion() {
  return {.name = "confusion",
          .read = [](ConfigReader* in) -> MakeCallback {
            std::string logits = "logits", labels = "targets";
            int64_t num_classes = 2;
            in->read("outputs", &logits, "confusion: key of outputs [samples, classes]");
            in->read("labels", &labels, "confusion: key of classes [samples]");
            in->require("num_classes");
            in->read("num_classes", &num_classes, between(2, 1000),
                     "confusion: rows and columns of confusion.csv");
            return [=](const Services& services) {
              return std::make_unique<Confusion>(logits, labels, num_classes, services);
            };
          },
          .modes = {"eval"}};
}

}  // namespace lockstep::coord
