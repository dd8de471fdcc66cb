// Readers of section `train` and of its profiler's options. The texts are also the documentation of
// the keys.
#include "train/step/train_options.h"

namespace lockstep::train {

TrainOptions read_train_options(ConfigReader in) {
  TrainOptions options;
  std::vector<std::string> losses = loss_types().names();
  losses.insert(losses.begin(), {"auto", "own"});
  in.read_choice("loss", &options.loss, losses,
                 "loss, averaged over all samples of an update; auto: by the targets; own: "
                 "computed by the network");
  in.read("label_smoothing", &options.loss_options.label_smoothing, half_open(0, 1),
          "cross_entropy, next_token: label smoothing");
  in.read_choice("precision", &options.precision, {"fp32", "bf16", "fp16"},
                 "number type of layers; weights, gradients and loss stay fp32");
  options.loss_scale = read_loss_scale_options(in.section("loss_scale"));
  in.read_choice("batch_norm", &options.batch_norm, {"broadcast", "average", "sync"},
                 "running statistics: rank 0's (broadcast) or their mean; sync: also normalize "
                 "over all ranks' samples");
  in.read_choice("cuda_graphs", &options.cuda_graphs, {"auto", "on", "off"},
                 "CUDA graphs of forward and backward; auto: unless gradients overlap backward; "
                 "on: instead of that overlap");
  in.read("replicas_to_aggregate", &options.replicas_to_aggregate, between(1, 1e6),
          "gradient accumulation: micro-batches per update and rank");
  options.trainable_scopes =
      NameScopes::read(&in, "trainable_scopes",
                       "prefixes of trained variables, as a list or comma-separated; others stay "
                       "frozen until a recipe changes that; default all");
  in.read("max_steps", &options.max_steps, count_from(0),
          "limit in updates, overriding the recipe");
  in.read("max_epochs", &options.max_epochs, count_from(0),
          "limit in epochs, overriding the recipe");
  in.read("max_nonfinite_steps", &options.max_nonfinite_steps, count_from(1),
          "skipped non-finite updates in a row that end the run");
  in.done();
  return options;
}

// Reader of profile_hook_config, with the key names of TensorFlow's ProfilerHook.

std::optional<ProfileOptions> read_profile_options(ConfigReader* run_config) {
  constexpr const char* kSection = "profile_hook_config";
  const bool is_there = run_config->has(kSection);
  ConfigReader in = run_config->section(kSection);
  ProfileOptions options;
  in.read("save_steps", &options.save_steps, count_from(1),
          "steps between traces timeline-<step>.json");
  in.read("save_secs", &options.save_secs, between(0.001, 1e9),
          "seconds between traces, instead of save_steps");
  in.read("show_memory", &options.show_memory, "trace allocations");
  in.read("show_dataflow", &options.show_dataflow, "trace links from operators to their backward");
  in.read("ranks", &options.ranks, count_from(0), "traced ranks; default all");
  if (!in.lists_fields() && in.has("output_dir")) {
    (void)in.take("output_dir");
    in.fault("output_dir", "the traces' folder is the run's (run.project_dir): take it out");
  }
  in.done();
  if (!is_there) return std::nullopt;
  if (options.save_steps.has_value() == options.save_secs.has_value())
    in.fault("save_steps", "give one of save_steps and save_secs");
  return options;
}

}  // namespace lockstep::train
