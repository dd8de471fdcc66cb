#include "cli/command_line.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/number_range.h"

// The callbacks run while CLI11 parses, so they only store a command. run_command_line() calls it
// afterwards.
namespace lockstep::daemon {

void CheckpointCommands::add_to(CLI::App* app) {
  CLI::App* ckpt =
      app->add_subcommand("ckpt", "inspect, compare and export checkpoints")->require_subcommand(1);
  add_inspect(ckpt, "ls", "list the checkpoints of a folder", tensors_.list_saves);
  add_inspect(ckpt, "show", "list the tensors of a checkpoint", tensors_.show_save)
      ->add_flag("--values", inspect_.values, "with --json: every value too");
  add_inspect(ckpt, "verify", "read every byte and compare every checksum", tensors_.verify_saves);
  add_inspect(ckpt, "latest", "print the prefix of the newest complete checkpoint",
              tensors_.latest_save);
  add_diff(ckpt);
  add_export(ckpt);
  add_collect(ckpt);
}

CLI::App* CheckpointCommands::add_inspect(CLI::App* parent, const char* name, const char* help,
                                          InspectSave inspect) {
  CLI::App* sub = parent->add_subcommand(name, help);
  sub->add_option("DIR", where_, "folder of checkpoints, or the prefix of one (DIR/model.ckpt-200)")
      ->required();
  sub->add_flag("--json", inspect_.json, "print JSON");
  sub->callback([this, inspect] {
    command_ = [this, inspect]() -> CommandResult {
      if (inspect_.values && !inspect_.json)
        throw Error(ExitCode::kUsage, "ckpt", "--values needs --json");
      const checkpoint::Answer answer = inspect(where_, inspect_);
      return {answer.text, answer.ok ? 0 : static_cast<int>(ExitCode::kBadData)};
    };
  });
  return sub;
}

void CheckpointCommands::add_diff(CLI::App* parent) {
  CLI::App* sub = parent->add_subcommand("diff", "compare two checkpoints tensor by tensor");
  for (auto [name, where] : {std::pair("A", &where_), std::pair("B", &second_where_)})
    sub->add_option(name, *where, "folder of checkpoints, or the prefix of one")->required();
  sub->add_flag("--json", diff_.json, "print JSON");
  sub->add_option("--under", diff_.under, "only keys under this one: model, optimizer, ...");
  sub->footer("Returns 0 if the checkpoints are equal, 1 if they differ.");
  sub->callback([this] {
    command_ = [this]() -> CommandResult {
      const checkpoint::Answer answer = tensors_.diff_saves(where_, second_where_, diff_);
      return {answer.text, answer.ok ? 0 : 1};
    };
  });
}

void CheckpointCommands::add_collect(CLI::App* parent) {
  CLI::App* sub = parent->add_subcommand(
      "gc", "remove files of interrupted saves, and with --keep old checkpoints");
  sub->add_option("DIR", where_, "folder of checkpoints; no run may be using it")->required();
  sub->add_option("--keep", collect_.keep,
                  "number of complete checkpoints to keep, the newest ones")
      ->check(whole_number(1, 1'000'000'000));
  sub->add_flag("--dry-run", collect_.dry_run, "only print what would be removed");
  sub->add_flag("--json", collect_.json, "print JSON");
  sub->callback([this] {
    command_ = [this]() -> CommandResult {
      return {tensors_.collect_garbage(where_, collect_).text, 0};
    };
  });
}

void CheckpointCommands::add_export(CLI::App* parent) {
  CLI::App* sub =
      parent->add_subcommand("export", "write the model of a checkpoint in another format");
  sub->add_option("DIR", export_.where,
                  "folder of checkpoints, or the prefix of one (DIR/model.ckpt-200)")
      ->required();
  sub->add_option("-o,--output", export_.out_file,
                  "output file; tensorflow: a prefix, the step is appended")
      ->required();
  sub->add_option("--format", export_format_,
                  "safetensors (the default), torchscript, onnx or tensorflow")
      ->check(CLI::IsMember(export_formats()));
  sub->add_flag("--quantize", export_.quantize,
                "safetensors, onnx: weights of quantized layers as int8");
  sub->add_flag("--all", export_.all, "tensorflow: the whole checkpoint, not only the model");
  sub->add_flag("--ema", export_.ema, "the moving averages of the weights (optimizer.ema_decay)");
  sub->add_option("--set", sets_,
                  "new path of a moved file of the network: model.path=FILE, estimator.path=FILE, "
                  "plugins[0]=FILE");
  sub->callback([this] {
    export_.format = daemon::export_format(export_format_);
    command_ = [this] {
      export_.overrides = overrides_of(sets_, "", {});
      return tensors_.export_save(export_);
    };
  });
}

}  // namespace lockstep::daemon
