// Readers of section `train` and of its profiler's options. The texts are also the documentation of
// the keys.
#include "train/step/train_options.h"

namespace lockstep::train {

TrainOptions read_train_options(ConfigReader in) {
  TrainOptions options;
  std::vector<std::string> losses = loss_types().names();
  losses.insert(losses.begin(), {"auto", "own"});
  in.read_choice("loss", &options.loss, losses,
                 "what is minimised, averaged over all samples of an update; auto: by the data's "
                 "targets; own: what the network computes from inputs and targets");
  in.read("label_smoothing", &options.loss_options.label_smoothing, half_open(0, 1),
          "cross_entropy, next_token: share of each target that is spread over all classes");
  in.read_choice("precision", &options.precision, {"fp32", "bf16", "fp16"},
                 "number type in which layers compute; weights, gradients and loss stay fp32");
  options.loss_scale = read_loss_scale_options(in.section("loss_scale"));
  in.read_choice("batch_norm", &options.batch_norm, {"broadcast", "average", "sync"},
                 "moving statistics are rank 0's, or the mean of all ranks'; sync: batches are "
                 "normalised over all ranks too");
  in.read_choice("cuda_graphs", &options.cuda_graphs, {"auto", "on", "off"},
                 "on a GPU, whether forward and backward are recorded and launched by one call; "
                 "auto: where gradients are not to travel during backward; on: there too, and they "
                 "travel after it");
  in.read("replicas_to_aggregate", &options.replicas_to_aggregate, between(1, 1e6),
          "micro-batches of one update on each rank");
  options.trainable_scopes =
      NameScopes::read(&in, "trainable_scopes",
                       "variables that are trained, by the beginnings of their names, as a list or "
                       "with commas between, until a recipe says otherwise; all others stay as "
                       "they are, moving statistics too; default all");
  in.read("max_steps", &options.max_steps, count_from(0),
          "stop after this many updates, whatever the recipe says");
  in.read("max_epochs", &options.max_epochs, count_from(0),
          "stop after this many epochs, whatever the recipe says");
  in.read("max_nonfinite_steps", &options.max_nonfinite_steps, count_from(1),
          "skipped non-finite updates in a row after which all ranks stop");
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
          "a step whose number is a multiple of it leaves timeline-<step>.json");
  in.read("save_secs", &options.save_secs, between(0.001, 1e9),
          "instead of save_steps: seconds after which the next step leaves one");
  in.read("show_memory", &options.show_memory, "also what is allocated and freed");
  in.read("show_dataflow", &options.show_dataflow,
          "also arrows from an operator to its part of backward");
  in.read("ranks", &options.ranks, count_from(0), "ranks that are traced; default all");
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
