#include "checkpoint/checkpoint_options.h"

namespace lockstep::checkpoint {
namespace {

/// TensorFlow looks for saves with patterns, so these letters would make them invisible to it.
constexpr std::string_view kForbidden = "/\\*?[]";

void check_prefix(const std::string& prefix, YamlFields* in) {
  if (prefix.empty())
    in->fault("prefix", "'checkpoint.prefix' is empty");
  else if (prefix.find_first_of(kForbidden) != std::string::npos)
    in->fault(
        "prefix",
        "'checkpoint.prefix' is a file name: none of / \\ * ? [ ] (the folder is run.project_dir)");
  else if (prefix.ends_with(".index") || prefix.ends_with(".tmp"))
    in->fault("prefix",
              "'checkpoint.prefix' may not end in .index or .tmp: saves add their own endings");
}

}  // namespace

CheckpointOptions read_checkpoint_options(YamlFields in) {
  CheckpointOptions options;
  in.read("prefix", &options.prefix, "file name of the saves; each adds its step: model.ckpt-1200");
  in.read("save_checkpoints_steps", &options.save_checkpoints_steps, count_from(1),
          "optimizer updates between two saves; not together with save_checkpoints_secs");
  in.read("save_checkpoints_secs", &options.save_checkpoints_secs, at_least(1),
          "seconds between two saves; 600 if neither interval is given");
  in.read("keep_checkpoint_max", &options.keep_checkpoint_max, at_least(-1),
          "newest saves that are kept; -1 keeps all, 0 is refused");
  in.read("save_at_end", &options.save_at_end, "whether the end of training is saved too");
  check_prefix(options.prefix, &in);
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
