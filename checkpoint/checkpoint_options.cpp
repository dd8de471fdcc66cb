// Reader of section `checkpoint`. Values that contradict each other are faults of the run file, not
// of the run.
#include "checkpoint/checkpoint_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/save_files.h"

namespace lockstep::checkpoint {
namespace {

void check_prefix(const std::string& prefix, ConfigReader* in) {
  if (prefix.empty())
    in->fault("prefix", "'checkpoint.prefix' is empty");
  else if (prefix.find('/') != std::string::npos)
    in->fault("prefix",
              "'checkpoint.prefix' is a file name without / (the folder is run.project_dir)");
  else if (const auto fault = fault_of_prefix_name(prefix))
    in->fault("prefix", fmt::format("'checkpoint.prefix' {}", *fault));
}

// The parts are those by which the trainer chooses the state to save.
void check_include(const std::vector<std::string>& include, ConfigReader* in) {
  static const std::vector<std::string> kParts = {"model", "optimizer", "modifiers", "clock",
                                                  "random"};
  for (const std::string& part : include)
    if (std::find(kParts.begin(), kParts.end(), part) == kParts.end())
      in->fault("include", fmt::format("'checkpoint.include' holds '{}': it takes {}{}", part,
                                       fmt::join(kParts, ", "), did_you_mean(part, kParts)));
  if (std::find(include.begin(), include.end(), "model") == include.end())
    in->fault("include", "'checkpoint.include' lacks model, without which a save is of no use");
}

}  // namespace

bool CheckpointOptions::includes(std::string_view part) const {
  return std::find(include.begin(), include.end(), part) != include.end();
}

CheckpointOptions read_checkpoint_options(ConfigReader in) {
  CheckpointOptions options;
  in.read("prefix", &options.prefix, "file name of the saves; each adds its step: model.ckpt-1200");
  in.read("save_checkpoints_steps", &options.save_checkpoints_steps, count_from(1),
          "optimizer updates between two saves; not together with save_checkpoints_secs");
  in.read("save_checkpoints_secs", &options.save_checkpoints_secs, at_least(1),
          "seconds between two saves; 600 if neither interval is given");
  in.read("keep_checkpoint_max", &options.keep_checkpoint_max, at_least(-1),
          "newest saves that are kept; -1 keeps all, 0 is refused");
  in.read("save_at_end", &options.save_at_end, "whether the end of training is saved too");
  in.read("keep_every", &options.keep_every, count_from(0),
          "saves at multiples of this many steps are never removed; 0: none are spared");
  in.read_choice("keep_best", &options.keep_best, {"none", "eval.accuracy", "eval.loss"},
                 "the save with the best evaluation at its step is never removed");
  in.read("include", &options.include,
          "what a save holds: model, optimizer, modifiers (masks, quantization), clock (step, "
          "position in the data), random; without clock a run cannot go on from it; with clock, a "
          "recipe that prunes or quantizes needs modifiers too");
  in.read("sparse", &options.sparse,
          "of pruned weights and their moments, store kept values and mask bits only");
  in.read_choice("wait_for", &options.wait_for, {"update", "staging", "commit"},
                 "what training waits for at a save: nothing until the next update (the copy runs "
                 "beside forward and backward), the copy, or the commit");
  in.read("timeout_s", &options.timeout_s, more_than(0),
          "longest wait of a rank for the others inside a save, in seconds; until the state is "
          "staged, as training waits meanwhile, sync.timeout_s where that is shorter");
  options.warm_start = read_warm_start_options(&in);
  check_prefix(options.prefix, &in);
  check_include(options.include, &in);
  // keep_checkpoint_max 0 is refused, because the newest checkpoint must stay for a resume.
  if (options.keep_checkpoint_max == 0)
    in.fault("keep_checkpoint_max",
             "'checkpoint.keep_checkpoint_max' is 0, which would keep no save; -1 keeps all");
  if (options.save_checkpoints_steps && options.save_checkpoints_secs)
    in.fault("save_checkpoints_secs",
             "'checkpoint.save_checkpoints_secs' and 'checkpoint.save_checkpoints_steps' are both "
             "given: remove one");
  in.done();
  return options;
}

}  // namespace lockstep::checkpoint
