// Keys of a warm start. They are in section `checkpoint` of the run file, next to those of saving.
#include "checkpoint/warm_start_options.h"

namespace lockstep::checkpoint {

WarmStartOptions read_warm_start_options(ConfigReader* in) {
  WarmStartOptions options;
  const bool is_named = in->read(
      "warm_start_ckpt", &options.warm_start_ckpt,
      "weights that a new run begins with: a checkpoint, Lockstep's or TensorFlow's, a folder "
      "of them, a .safetensors file, or a state dict that PyTorch saved (.pt, .pth; nothing "
      "in it is run); a run with saves of its own goes on from those");
  if (is_named && options.warm_start_ckpt.empty())
    in->fault("warm_start_ckpt",
              "'checkpoint.warm_start_ckpt' is empty: name a save, or leave it out");
  options.checkpoint_restore_scopes =
      NameScopes::read(in, "checkpoint_restore_scopes",
                       "variables that warm_start_ckpt fills, by the beginnings of their names, as "
                       "a list or with commas between; default all");
  options.checkpoint_exclude_scopes =
      NameScopes::read(in, "checkpoint_exclude_scopes",
                       "variables that warm_start_ckpt does not fill, by the beginnings of their "
                       "names, whatever checkpoint_restore_scopes says");
  in->read_choice("warm_start_kernels", &options.warm_start_kernels,
                  {"auto", "lockstep", "tensorflow"},
                  "order of dimensions in warm_start_ckpt of the weights of linear layers and "
                  "convolutions; lockstep: [outputs, inputs], as in PyTorch; tensorflow: [inputs, "
                  "outputs] and [rows, columns, inputs, outputs]; auto: tensorflow for kernels of "
                  "a checkpoint of TensorFlow");
  options.warm_start_rename = RenameRules::read(
      in, "warm_start_rename",
      "what variables or parts of warm_start_ckpt are called here; `from` is a name, or re: and a "
      "pattern of the name's beginning, `to` may hold \\1; the first that matches counts; also as "
      "a map {dense_1: classifier}");
  // Scopes and rules without a file are a mistake, for instance a forgotten key.
  const bool says_what = !options.checkpoint_restore_scopes.empty() ||
                         !options.checkpoint_exclude_scopes.empty() || in->has("warm_start_rename");
  if (says_what && !is_named && options.warm_start_ckpt.empty())
    in->fault("warm_start_ckpt",
              "'checkpoint.checkpoint_restore_scopes', 'checkpoint_exclude_scopes' and "
              "'warm_start_rename' say what 'checkpoint.warm_start_ckpt' fills: name one");
  return options;
}

}  // namespace lockstep::checkpoint
