#include "coord/kpi_callback.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "coord/callback_types.h"
#include "coord/data_map.h"
#include "metrics/tensorboard/event_file.h"

namespace lockstep::coord {

KpiEvaluatorCallback::KpiEvaluatorCallback(std::unique_ptr<KpiEvaluator> evaluator,
                                           Services services)
    : evaluator_(std::move(evaluator)),
      services_(std::move(services)),
      sums_(static_cast<size_t>(evaluator_->num_sums()) + 1, 0.0) {}

void KpiEvaluatorCallback::begin() {
  std::fill(sums_.begin(), sums_.end(), 0.0);
  summary_step_ = context().summary_step;
  if (context().is_training() && context().rank == 0)
    log::warning("callbacks",
                 "KPIs are computed in each step of training, which may be slow; "
                 "modes: [eval] leaves them to evaluations");
}

std::optional<DataMap> KpiEvaluatorCallback::on_iteration_end(const DataMap& data) {
  evaluator_->add(data, {sums_.data(), sums_.size() - 1});
  sums_.back() += 1;
  summary_step_ = context().summary_step;
  return DataMap();
}

void KpiEvaluatorCallback::show() {
  // Reset before the collective, so that a failed one does not count samples twice.
  std::vector<double> sums = std::exchange(sums_, std::vector<double>(sums_.size(), 0.0));
  // Every rank must call this collective, even one without iterations.
  if (services_.sum_over_ranks) services_.sum_over_ranks(sums);
  if (sums.back() == 0) return;  // no iteration since the last values on any rank
  std::vector<std::string> tags;
  std::vector<metrics::Scalar> scalars;
  const std::vector<Kpi> kpis = evaluator_->values({sums.data(), sums.size() - 1});
  for (const Kpi& kpi : kpis) tags.push_back("kpi/" + kpi.name);
  for (size_t i = 0; i < kpis.size(); ++i) {
    values_[kpis[i].name] = kpis[i].value;
    scalars.push_back({tags[i], kpis[i].value});
    if (services_.set_kpi) services_.set_kpi(kpis[i].name, kpis[i].value);
  }
  // The values are equal on all ranks; one curve is enough.
  if (context().summary_writer != nullptr && context().rank == 0)
    context().summary_writer->add(summary_step_, scalars);
}

void KpiEvaluatorCallback::end() {
  if (!context().is_broken_off) show();  // values of some batches are not those of the data set
}

std::vector<std::string> KpiEvaluatorCallback::kpi_names() const {
  // Sums of 1 avoid a division by 0; only the names are used.
  const std::vector<double> ones(static_cast<size_t>(evaluator_->num_sums()), 1.0);
  std::vector<std::string> names;
  try {
    for (const Kpi& kpi : evaluator_->values(ones)) names.push_back(kpi.name);
  } catch (const std::exception&) {  // it accepts only its own sums
    names.clear();
  }
  return names;
}

namespace {

/// TopK: `top_<k>`, the share of samples whose class is among the k highest outputs. A tie counts
/// as correct, a non-finite output as wrong.
class TopK : public KpiEvaluator {
 public:
  TopK(std::string logits, std::string labels, std::vector<int64_t> ks)
      : logits_(std::move(logits)), labels_(std::move(labels)), ks_(std::move(ks)) {}

  std::vector<std::string> incoming_keys() const override { return {logits_, labels_}; }
  int64_t num_sums() const override { return static_cast<int64_t>(ks_.size()) + 1; }

  void add(const DataMap& data, std::span<double> sums) override {
    const at::Tensor outputs_BC = data.tensor(logits_).detach();
    const at::Tensor labels_B = data.tensor(labels_).to(outputs_BC.device(), at::kLong);
    require_fit(outputs_BC, labels_B);
    const at::Tensor own_B1 = outputs_BC.gather(1, labels_B.unsqueeze(1));
    // A class is among the top k if fewer than k outputs are higher. So ties count as correct.
    const at::Tensor num_higher_B = outputs_BC.gt(own_B1).sum(1);
    // A NaN compares as not higher, so it would count as correct.
    const at::Tensor is_finite_B = outputs_BC.isfinite().all(1);
    for (size_t i = 0; i < ks_.size(); ++i)
      sums[i] += num_higher_B.lt(ks_[i]).logical_and(is_finite_B).sum().item<double>();
    sums.back() += static_cast<double>(labels_B.numel());
  }

  std::vector<Kpi> values(std::span<const double> sums) const override {
    std::vector<Kpi> kpis;
    for (size_t i = 0; i < ks_.size(); ++i)
      kpis.push_back({fmt::format("top_{}", ks_[i]), sums[i] / sums.back()});
    return kpis;
  }

 private:
  /// Throws Error(kBadData) unless shapes and classes fit.
  void require_fit(const at::Tensor& outputs_BC, const at::Tensor& labels_B) const {
    if (outputs_BC.dim() != 2 || labels_B.dim() != 1 || labels_B.size(0) != outputs_BC.size(0))
      throw Error(ExitCode::kBadData, "callbacks",
                  fmt::format("'{}' has {} dimensions and {} numbers, '{}' {} and {}; wanted are "
                              "[samples, classes] and [samples]",
                              logits_, outputs_BC.dim(), outputs_BC.numel(), labels_,
                              labels_B.dim(), labels_B.numel()));
    if (labels_B.numel() == 0) return;
    const auto lowest = labels_B.min().item<int64_t>(), highest = labels_B.max().item<int64_t>();
    if (lowest < 0 || highest >= outputs_BC.size(1))
      throw Error(
          ExitCode::kBadData, "callbacks",
          fmt::format("'{}' holds class {}, and '{}' has outputs for classes 0 to {}", labels_,
                      lowest < 0 ? lowest : highest, logits_, outputs_BC.size(1) - 1));
  }

  const std::string logits_, labels_;
  const std::vector<int64_t> ks_;
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
            if (ks.empty()) in->fault("k", "'k' names no number, so that there is nothing to show");
            std::sort(ks.begin(), ks.end());
            ks.erase(std::unique(ks.begin(), ks.end()), ks.end());
            return [=](const Services& services) {
              return std::make_unique<KpiEvaluatorCallback>(
                  std::make_unique<TopK>(logits, labels, ks), services);
            };
          },
          .modes = {"eval"}};
}

namespace {

/// Returns a field of a CSV file, quoted if necessary (RFC 4180).
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char letter : text) field += letter == '"' ? "\"\"" : std::string(1, letter);
  return field + "\"";
}

/// Confusion matrix: samples by class (row) and by the class with the highest output (column), over
/// all ranks and iterations. Writes confusion.csv at the end.
class Confusion : public Callback {
 public:
  Confusion(std::string logits, std::string labels, int64_t num_classes, Services services)
      : logits_(std::move(logits)),
        labels_(std::move(labels)),
        num_classes_(num_classes),
        counts_(static_cast<size_t>(num_classes * num_classes), 0.0),
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

  void begin() override { std::fill(counts_.begin(), counts_.end(), 0.0); }

  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    // argmax takes the first of equal outputs.
    const at::Tensor chosen_B = on_cpu(data.tensor(logits_)).argmax(-1).to(at::kLong);
    const at::Tensor labels_B = on_cpu(data.tensor(labels_)).to(at::kLong);
    if (chosen_B.dim() != 1 || chosen_B.sizes() != labels_B.sizes())
      throw Error(ExitCode::kBadData, "callbacks",
                  fmt::format("'{}' is of {} samples and '{}' of {}; wanted are [samples, classes] "
                              "and [samples]",
                              logits_, chosen_B.numel(), labels_, labels_B.numel()));
    const auto* const chosen = static_cast<const int64_t*>(chosen_B.const_data_ptr());
    const auto* const labels = static_cast<const int64_t*>(labels_B.const_data_ptr());
    for (int64_t i = 0; i < labels_B.numel(); ++i)
      // Row: the sample's class, column: the chosen class.
      counts_[static_cast<size_t>(class_of(labels[i]) * num_classes_ + class_of(chosen[i]))] += 1;
    return DataMap();
  }

  void end() override {
    // Before the collective, because after an error the other ranks may not call it.
    if (is_half_told(context(), "confusion.csv")) return;
    if (services_.sum_over_ranks) services_.sum_over_ranks(counts_);
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
    std::string text;
    if (has_names) {
      for (const std::string& name : names) text += "," + quoted(name);
      text += '\n';
    }
    for (size_t row = 0; row < num_classes; ++row) {
      if (has_names) text += quoted(names[row]) + ",";
      for (size_t column = 0; column < num_classes; ++column)
        text +=
            fmt::format("{}{:.0f}", column == 0 ? "" : ",", counts_[row * num_classes + column]);
      text += '\n';
    }
    return text;
  }

  /// Returns the class number after checking its range.
  int64_t class_of(int64_t number) const {
    if (number >= 0 && number < num_classes_) return number;
    throw Error(
        ExitCode::kBadData, "callbacks",
        fmt::format("there is a sample of class {}, and num_classes is {}", number, num_classes_));
  }

  const std::string logits_, labels_;
  const int64_t num_classes_;
  std::vector<double> counts_;  // [num_classes, num_classes]
  const Services services_;
};

}  // namespace

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
