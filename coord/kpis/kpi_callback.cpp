#include "coord/kpis/kpi_callback.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
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

}  // namespace lockstep::coord
