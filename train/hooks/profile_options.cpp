// Reader of profile_hook_config, with the key names of TensorFlow's ProfilerHook.
#include "train/hooks/profile_options.h"

namespace lockstep::train {

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
