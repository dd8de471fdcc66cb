#include "checkpoint/warm_start_options.h"

namespace lockstep::checkpoint {

WarmStartOptions read_warm_start_options(YamlFields* in) {
  WarmStartOptions options;
  in->read("warm_start_ckpt", &options.warm_start_ckpt,
           "a checkpoint, Lockstep's or TensorFlow's, or a folder of them, whose weights a new run "
           "begins with; a run with saves of its own goes on from those");
  options.checkpoint_restore_scopes =
      NameScopes::read(in, "checkpoint_restore_scopes",
                       "parts of the model that warm_start_ckpt fills, as a list or with commas "
                       "between; default all");
  options.checkpoint_exclude_scopes =
      NameScopes::read(in, "checkpoint_exclude_scopes",
                       "parts of the model that warm_start_ckpt does not fill, whatever "
                       "checkpoint_restore_scopes says");
  const bool has_scopes =
      !options.checkpoint_restore_scopes.empty() || !options.checkpoint_exclude_scopes.empty();
  if (has_scopes && options.warm_start_ckpt.empty())
    in->fault("warm_start_ckpt",
              "'checkpoint.checkpoint_restore_scopes' and 'checkpoint_exclude_scopes' say what "
              "'checkpoint.warm_start_ckpt' fills: name one");
  return options;
}

}  // namespace lockstep::checkpoint
