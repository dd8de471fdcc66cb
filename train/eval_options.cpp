// Readers of the sections `eval` and `export`. Each metric reads its own subsection.
#include "train/eval_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "base/diagnostics.h"
#include "base/error.h"

namespace lockstep::train {

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

/// Returns the wanted metrics in the order of the table.
std::vector<MakeEvalMetric> read_wanted(const std::vector<std::string>& wanted, ConfigReader* in) {
  std::vector<MakeEvalMetric> metrics;
  for (const EvalMetricType* type : eval_metric_types().rows()) {
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), type->name) != wanted.end();
    // lists_fields(): the documentation of keys is generated from the same code.
    if (!is_wanted && !in->has(type->name) && !in->lists_fields()) {
      (void)in->take(type->name);  // a null value is allowed
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

/// Returns the place of a key in the run file, for messages: a flag, or a line.
std::string origin_of(std::string_view key, const ConfigReader& in) {
  for (const auto& pair : in.node())
    if (pair.first.IsScalar() && pair.first.Scalar() == key)
      return in.document().place_text(pair.first.Mark());
  return "";
}

void read_eval_freq(EvalOptions* options, ConfigReader* in) {
  std::optional<int64_t> batches;
  const bool has_freq = in->read("eval_freq", &options->eval_freq, count_from(1),
                                 "batches per evaluation (not an interval); default all");
  const bool has_batches = in->read("eval_batches", &batches, count_from(1), "alias of eval_freq");
  // The place goes into messages that can be made only once the data set is known.
  if (has_freq) options->eval_freq_origin = origin_of("eval_freq", *in);
  if (!has_batches) return;
  if (has_freq)
    in->fault("eval_batches",
              fmt::format("'eval.eval_batches' is another name of 'eval.eval_freq' ({}): keep one",
                          options->eval_freq_origin));
  options->eval_freq = batches;
  options->eval_freq_origin = origin_of("eval_batches", *in);
}

}  // namespace

EvalOptions read_eval_options(ConfigReader in) {
  EvalOptions options;
  in.read("on_save", &options.on_save,
          "evaluate each committed checkpoint; every_epochs then saves first");
  // With on_save, evaluations by epochs are off unless requested.
  if (options.on_save) options.every_epochs = 0;
  in.read("every_epochs", &options.every_epochs, count_from(0),
          "epochs between evaluations; 0 (default with on_save): only at the end");
  in.read("batch_size", &options.batch_size, count_from(1), "samples per forward pass and rank");
  bool use_ema = true;
  if (in.read("use_ema", &use_ema, "evaluate the moving average of optimizer.ema_decay, if any"))
    options.use_ema = use_ema;
  read_eval_freq(&options, &in);
  in.read("eval_throttle_secs", &options.eval_throttle_secs, at_least(0),
          "on_save: least seconds between starts of evaluations");
  double every_secs = 0;
  if (in.read(
          "every_secs", &every_secs, at_least(0.001),
          "on_save: seconds of training between saves with evaluation; default: no such saves")) {
    options.every_secs = every_secs;
    if (!options.on_save)
      in.fault("every_secs",
               "'eval.every_secs' evaluates checkpoints: it needs 'eval.on_save: true'");
  }
  in.read("patience", &options.patience, count_from(0),
          "early stopping: evaluations without improvement, by checkpoint.keep_best, else by the "
          "loss; 0: never");
  in.read("strict_restore_on_switch", &options.strict_restore_on_switch,
          "on_save: reload the checkpoint before and after each evaluation, and fail if any bit "
          "changes");
  if (options.strict_restore_on_switch && !options.on_save)
    in.fault(
        "strict_restore_on_switch",
        "'eval.strict_restore_on_switch' reads checkpoints back: it needs 'eval.on_save: true'");
  std::vector<std::string> wanted;
  const bool has_metrics = in.read("metrics", &wanted,
                                   fmt::format("extra metrics: {}; default perplexity for tokens",
                                               fmt::join(eval_metric_types().names(), ", ")));
  if (const std::string fault = fault_of_names(wanted); !fault.empty()) in.fault("metrics", fault);
  std::vector<MakeEvalMetric> metrics = read_wanted(wanted, &in);
  // An empty list means "no metrics"; an absent one, the default.
  if (has_metrics) options.metrics = std::move(metrics);
  in.done();
  return options;
}

int64_t num_eval_samples(const EvalOptions& options, int64_t num_samples) {
  if (num_samples == 0) throw Error(ExitCode::kBadData, "eval", "data.eval contains no samples");
  // All samples: a partial last batch counts too.
  if (!options.eval_freq) return num_samples;
  const int64_t num_batches = (num_samples + options.batch_size - 1) / options.batch_size;
  if (*options.eval_freq > num_batches)
    throw Error(
        ExitCode::kConfig, "eval",
        fmt::format(
            "'eval.eval_freq'{} asks for {} batches of {} samples "
            "(eval.batch_size), and data.eval has {} samples, which are {}: lower "
            "one of them, or set eval_freq to null to evaluate all",
            options.eval_freq_origin.empty() ? "" : fmt::format(" ({})", options.eval_freq_origin),
            *options.eval_freq, options.batch_size, num_samples, num_batches));
  return std::min(num_samples, *options.eval_freq * options.batch_size);
}

EvalMetrics make_eval_metrics(const EvalOptions& options, const data::SampleSpec& spec,
                              bool outputs_are_usual) {
  EvalMetrics metrics;
  if (options.metrics) {
    for (const MakeEvalMetric& make : *options.metrics) metrics.push_back(make(spec));
  } else if (outputs_are_usual && spec.target_kind == data::TargetKind::kTokens) {
    metrics.push_back(eval_metric_types().find("perplexity")->read(nullptr)(spec));
  }
  return metrics;
}

// Reader of section `export`, and whether its keys come from a preset or from the user.

static void read_origins(const ConfigReader& in, PublishOptions* options) {
  bool is_written = false;
  if (!in.node().IsMap()) return;
  for (const auto& pair : in.node()) {
    if (pair.second.IsNull()) continue;  // counts as absent
    const std::string origin = in.document().place_text(pair.first.Mark());
    if (origin.starts_with("preset: "))
      options->preset = origin;
    else
      is_written = true;
  }
  options->is_from_preset = !options->preset.empty() && !is_written;
}

PublishOptions read_publish_options(ConfigReader in) {
  PublishOptions options;
  in.read("after_evaluation", &options.after_evaluation,
          "export each evaluated checkpoint to saved_models/<step>; evaluations save first");
  in.read("at_end", &options.at_end, "export the final weights to saved_models/<step>");
  in.read("best", &options.best,
          "link saved_models/best to the export of the best evaluation, by checkpoint.keep_best, "
          "else by the loss; never removed");
  in.read("onnx", &options.onnx,
          "add model.onnx to each export, with int8 weights of quantized layers");
  in.read("keep", &options.keep, at_least(-1), "newest exports to keep; -1: all; 0 is refused");
  if (options.keep == 0)
    in.fault("keep", "'export.keep' is 0, which would keep no export; -1 keeps all");
  if (options.best && !options.after_evaluation)
    in.fault("best", "'export.best' has no effect without 'export.after_evaluation: true'");
  if (options.onnx && !options.any())
    in.fault("onnx",
             "'export.onnx' has no effect without 'export.after_evaluation' or 'export.at_end'");
  read_origins(in, &options);
  in.done();
  return options;
}

}  // namespace lockstep::train
