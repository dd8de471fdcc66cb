#include "cli/command_line.h"

#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "checkpoint/tools/gc.h"
#include "checkpoint/tools/inspect.h"
#include "daemon/config/number_range.h"
#include "infer/exports/export.h"

// Each command shares its options with the parser, which fills them in before the command is
// called.
namespace lockstep::cli {
namespace {

void add_diff(CLI::App* parent, ParsedLine* line) {
  struct Diff {
    std::string a, b;
    checkpoint::DiffOptions options;
  };
  const auto asked = std::make_shared<Diff>();
  CLI::App* sub = parent->add_subcommand("diff", "compare two checkpoints tensor by tensor");
  sub->add_option("A", asked->a, "folder of checkpoints, or the prefix of one")->required();
  sub->add_option("B", asked->b, "folder of checkpoints, or the prefix of one")->required();
  sub->add_flag("--json", asked->options.json, "print JSON");
  sub->add_option("--under", asked->options.under,
                  "only keys under this one: model, optimizer, ...");
  sub->footer("Returns 0 if the checkpoints are equal, 1 if they differ.");
  set_tensor_command(sub, line, [=](auto) -> daemon::CommandResult {
    const auto answer = checkpoint::diff_saves(asked->a, asked->b, asked->options);
    return {answer.text, answer.ok ? 0 : 1};
  });
}

void add_collect(CLI::App* parent, ParsedLine* line) {
  struct Collect {
    std::string where;
    checkpoint::GcOptions options;
  };
  const auto asked = std::make_shared<Collect>();
  CLI::App* sub = parent->add_subcommand(
      "gc", "remove files of interrupted saves, and with --keep old checkpoints");
  sub->add_option("DIR", asked->where, "folder of checkpoints; no run may be using it")->required();
  sub->add_option("--keep", asked->options.keep,
                  "number of complete checkpoints to keep, the newest ones")
      ->check(daemon::whole_number(1, 1'000'000'000));
  sub->add_option("--min-age", asked->options.min_age_s,
                  "in an object store: seconds since which an upload or a shard must be unfinished "
                  "to count as interrupted")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  sub->add_flag("--dry-run", asked->options.dry_run, "only print what would be removed");
  sub->add_flag("--json", asked->options.json, "print JSON");
  set_tensor_command(sub, line, [=](auto) -> daemon::CommandResult {
    return {checkpoint::collect_garbage(asked->where, asked->options).text, 0};
  });
}

void add_export(CLI::App* parent, ParsedLine* line) {
  struct Export {
    std::vector<std::string> sets;
    exports::ExportOptions options;
  };
  const auto asked = std::make_shared<Export>();
  const std::vector<std::string> formats = exports::export_formats();
  CLI::App* sub =
      parent->add_subcommand("export", "write the model of a checkpoint in another format");
  sub->add_option("DIR", asked->options.where,
                  "folder of checkpoints, or the prefix of one (DIR/model.ckpt-200)")
      ->required();
  sub->add_option(
         "-o,--output", asked->options.out_file,
         "output file; tensorflow: a prefix, the step is appended; pretrained: a new folder")
      ->required();
  sub->add_option(
         "--format", asked->options.format,
         fmt::format("{} (the default), {} or {}", formats.front(),
                     fmt::join(formats.begin() + 1, formats.end() - 1, ", "), formats.back()))
      ->check(CLI::IsMember(formats));
  sub->add_flag("--quantize", asked->options.quantize,
                "safetensors, onnx: weights of quantized layers as int8");
  sub->add_flag("--sparse", asked->options.sparse,
                "safetensors: of pruned weights the kept ones, and a bit for each");
  sub->add_flag("--all", asked->options.all,
                "tensorflow: the whole checkpoint, not only the model");
  sub->add_flag("--ema", asked->options.ema,
                "the moving averages of the weights (optimizer.ema_decay)");
  sub->add_option("--max-shard-size", asked->options.max_shard_bytes,
                  "pretrained: tensors of one file at most, such as 500MB (default 5GB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(daemon::positive_number());
  sub->add_option("--set", asked->sets,
                  "new path of a moved file of the network: model.path=FILE, estimator.path=FILE, "
                  "plugins[0]=FILE");
  set_tensor_command(sub, line, [=](auto) {
    asked->options.overrides = daemon::overrides_of({.sets = asked->sets});
    return exports::export_command(asked->options);
  });
}

}  // namespace

void add_checkpoint_commands(CLI::App* app, ParsedLine* line) {
  CLI::App* ckpt =
      app->add_subcommand("ckpt", "inspect, compare and export checkpoints")->require_subcommand(1);
  struct Inspect {
    std::string where;
    checkpoint::InspectOptions options;
  };
  const auto asked = std::make_shared<Inspect>();
  const auto add = [&](const char* name, const char* help, const auto& inspect) {
    CLI::App* sub = ckpt->add_subcommand(name, help);
    sub->add_option("DIR", asked->where,
                    "folder of checkpoints, or the prefix of one (DIR/model.ckpt-200)")
        ->required();
    sub->add_flag("--json", asked->options.json, "print JSON");
    set_tensor_command(sub, line, [asked, inspect](auto) -> daemon::CommandResult {
      if (asked->options.values && !asked->options.json)
        throw Error(ExitCode::kUsage, "ckpt", "--values needs --json");
      const checkpoint::Answer answer = inspect(asked->where, asked->options);
      return {answer.text, answer.ok ? 0 : static_cast<int>(ExitCode::kBadData)};
    });
    return sub;
  };
  add("ls", "list the checkpoints of a folder",
      [](auto... of) { return checkpoint::list_saves(of...); });
  CLI::App* show = add("show", "list the tensors of a checkpoint",
                       [](auto... of) { return checkpoint::show_save(of...); });
  show->add_flag("--values", asked->options.values, "with --json: every value too");
  add("verify", "read every byte and compare every checksum",
      [](auto... of) { return checkpoint::verify_saves(of...); });
  add("latest", "print the prefix of the newest complete checkpoint",
      [](auto... of) { return checkpoint::latest_save(of...); });
  add_diff(ckpt, line);
  add_export(ckpt, line);
  add_collect(ckpt, line);
}

}  // namespace lockstep::cli
