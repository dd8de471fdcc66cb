#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "coord/builtins/builtins.h"
#include "coord/kpis/kpi_callback.h"

namespace lockstep::coord {
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
            in->read("outputs", &logits, "topk: key of the outputs, [samples, classes]");
            in->read("labels", &labels, "topk: key of the right classes, [samples]");
            in->read("k", &ks, count_from(1), "topk: how many of the highest outputs count, each");
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

}  // namespace lockstep::coord
