#include "train/evaluation/eval_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest_word.h"

namespace lockstep::train {

// Each stands in a file of its own and has a row below.
EvalMetricType confusion_matrix_type();
EvalMetricType perplexity_type();
EvalMetricType precision_recall_type();
EvalMetricType top_k_type();
std::unique_ptr<EvalMetric> make_perplexity(const data::SampleSpec& spec);

NamedTable<EvalMetricType>& eval_metric_types() {
  static NamedTable<EvalMetricType> types = [] {
    NamedTable<EvalMetricType> own("eval.metrics");
    own.add(top_k_type());
    own.add(precision_recall_type());
    own.add(confusion_matrix_type());
    own.add(perplexity_type());
    return own;
  }();
  return types;
}

namespace {

std::string fault_of_names(const std::vector<std::string>& wanted) {
  const std::vector<std::string> known = eval_metric_types().names();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::find(known.begin(), known.end(), wanted[i]) == known.end())
      return fmt::format("'eval.metrics' must be of: {}; got '{}'{}", fmt::join(known, ", "),
                         wanted[i], did_you_mean(wanted[i], known));
    if (std::find(wanted.begin(), wanted.begin() + static_cast<int64_t>(i), wanted[i]) !=
        wanted.begin() + static_cast<int64_t>(i))
      return fmt::format("'eval.metrics' names '{}' twice", wanted[i]);
  }
  return "";
}

/// In the order of the table.
std::vector<MakeEvalMetric> read_wanted(const std::vector<std::string>& wanted, ConfigReader* in) {
  std::vector<MakeEvalMetric> metrics;
  for (const EvalMetricType* type : eval_metric_types().rows()) {
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), type->name) != wanted.end();
    if (!is_wanted && !in->has(type->name) && !in->lists_fields()) {
      (void)in->take(type->name);  // null, perhaps, is no unknown key
      continue;
    }
    ConfigReader section = in->section(type->name);
    MakeEvalMetric make = type->read(&section);
    section.done();
    if (is_wanted)
      metrics.push_back(std::move(make));
    else if (!in->lists_fields())
      in->fault(type->name, fmt::format("'eval.{}' has no effect: 'eval.metrics' does not name it",
                                        type->name));
  }
  return metrics;
}

}  // namespace

EvalOptions read_eval_options(ConfigReader in) {
  EvalOptions options;
  in.read("every_epochs", &options.every_epochs, count_from(0),
          "epochs from one evaluation to the next; 0: only at the end");
  in.read("batch_size", &options.batch_size, count_from(1),
          "samples of one forward pass on a rank");
  std::vector<std::string> wanted;
  const bool has_metrics =
      in.read("metrics", &wanted,
              fmt::format("beside loss and accuracy, of: {}; default perplexity of tokens",
                          fmt::join(eval_metric_types().names(), ", ")));
  if (const std::string fault = fault_of_names(wanted); !fault.empty()) in.fault("metrics", fault);
  std::vector<MakeEvalMetric> metrics = read_wanted(wanted, &in);
  if (has_metrics) options.metrics = std::move(metrics);
  in.done();
  return options;
}

EvalMetrics make_eval_metrics(const EvalOptions& options, const data::SampleSpec& spec,
                              bool outputs_are_usual) {
  EvalMetrics metrics;
  if (options.metrics) {
    for (const MakeEvalMetric& make : *options.metrics) metrics.push_back(make(spec));
  } else if (outputs_are_usual && spec.target_kind == data::TargetKind::kTokens) {
    metrics.push_back(make_perplexity(spec));
  }
  return metrics;
}

}  // namespace lockstep::train
