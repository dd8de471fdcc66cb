#include "cli/command_line.h"

#include <array>
#include <cstdio>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/files/project.h"
#include "cli/curves.h"
#include "cli/new_project.h"
#include "cli/scale_command.h"
#include "cli/tensor_commands.h"
#include "daemon/config/number_range.h"
#include "daemon/run/check.h"
#include "metrics/goodput.h"
#include "metrics/series_table.h"

// The command line of `lockstep`. Each command shares its options with the parser, which fills them
// in before the command is called.
namespace lockstep::cli {
namespace {

/// Each example is also shown in the help of its command.
constexpr auto kExamples = std::to_array<std::string_view>(
    {"lockstep run configs/digits.yaml -n 2 --max-restarts 3",
     "lockstep ctl runs/digits status",
     "lockstep doctor --hosts n1:4,n2:4",
     "lockstep serve --queue jobs -n 2",
     "lockstep submit --queue jobs configs/digits.yaml --set run.seed=3",
     "lockstep ps --queue jobs",
     "lockstep logs --queue jobs 7 -f",
     "lockstep cancel --queue jobs 7",
     "lockstep wait --queue jobs 7",
     "lockstep launch slurm configs/digits.yaml --nodes 4 --time 1:00:00 | sbatch",
     "lockstep launch kubernetes configs/digits.yaml --name digits --nodes "
     "2 --image registry.example/lockstep:0.1.0 | kubectl apply -f -",
     "lockstep goodput runs/digits",
     "lockstep check configs/digits.yaml",
     "lockstep plan configs/digits.yaml --svg plan.svg",
     "lockstep plan configs/recipes/digits_prune.yaml --steps-per-epoch 23",
     "lockstep plan configs/digits.yaml --scale 16 --link-gbit 1 --latency-us 50",
     "lockstep new recipe my_recipe.yaml",
     "lockstep new project my_project --python",
     "lockstep curves runs/digits --svg curves.svg",
     "lockstep eval configs/digits.yaml",
     "lockstep eval configs/digits.yaml --watch",
     "lockstep sensitivity configs/digits.yaml --svg sensitivity.svg",
     "lockstep compress configs/digits.yaml --target 90% --quantize",
     "lockstep infer --saved_model latest --config configs/digits.yaml",
     "lockstep infer --checkpoint runs/digits/checkpoints/model.ckpt-230 "
     "--feed '{type: digits}'",
     "lockstep ckpt ls runs/digits/checkpoints",
     "lockstep ckpt show runs/digits/checkpoints --json",
     "lockstep ckpt verify runs/digits/checkpoints",
     "lockstep ckpt latest runs/digits/checkpoints",
     "lockstep ckpt diff runs/a/checkpoints runs/b/checkpoints --under model",
     "lockstep ckpt gc runs/digits/checkpoints --keep 2 --dry-run",
     "lockstep ckpt export runs/digits/checkpoints --format onnx -o digits.onnx",
     "lockstep ckpt export runs/qat/checkpoints --quantize --format onnx -o model.onnx",
     "lockstep reference --flags"});

void add_check(CLI::App* app, ParsedLine* line) {
  const auto file = std::make_shared<std::string>();
  const auto above = std::make_shared<daemon::AboveFile>();
  CLI::App* sub =
      app->add_subcommand("check", "check a run file; print each fault with its position");
  sub->add_option("FILE", *file, "the run file")->required();
  add_above_file(sub, line, above.get());
  set_tensor_command(
      sub, line, [=](auto) { return daemon::check_command(*file, daemon::overrides_of(*above)); });
}

/// Adds the options of `plan --scale`. Each of the others requires --scale.
CLI::Option* add_scale(CLI::App* sub, ScaleOptions* scale) {
  CLI::Option* ranks =
      sub->add_option("--scale", scale->ranks,
                      "predict step time, share of communication and scaling efficiency for up "
                      "to this many ranks, by the formula below")
          ->check(daemon::whole_number(1, kMostScaleRanks));
  sub->add_option("--ranks-per-host", scale->ranks_per_host, "for --scale; default: 1")
      ->check(daemon::whole_number(1, kMostScaleRanks))
      ->needs(ranks);
  const auto add = [&](const char* flag, auto* value, double least, const char* help) {
    return sub->add_option(flag, *value, help)->check(daemon::number(least, 1e9))->needs(ranks);
  };
  add("--link-gbit", &scale->link_gbit, 1e-6, "for --scale: rate of a host's link, each way");
  add("--latency-us", &scale->latency_us, 0, "for --scale: latency of a message, one way");
  add("--gradient-mb", &scale->gradient_mb, 1e-6,
      "for --scale: gradients of a step, 1e6 bytes; default: counted from the network");
  CLI::Option* step = add("--step-ms", &scale->step_ms, 1e-6,
                          "for --scale: step time on one rank; default: steps are timed here");
  add("--backward-ms", &scale->backward_ms, 0,
      "for --step-ms: part spent in backward, which can hide the exchange; default: 0")
      ->needs(step);
  add("--update-ms", &scale->update_ms, 0,
      "for --step-ms: part that does not depend on the batch; default: 0")
      ->needs(step);
  return ranks;
}

void add_plan(CLI::App* app, ParsedLine* line) {
  struct Plan {
    daemon::PlanOptions plan;
    ScaleOptions scale;
    daemon::AboveFile above;
    int64_t steps_per_epoch = 0;
  };
  const auto asked = std::make_shared<Plan>();
  daemon::PlanOptions& plan = asked->plan;
  CLI::App* sub = app->add_subcommand("plan", "print the recipe's actions, step by step");
  sub->add_option("FILE", plan.file, "a run file or a bare recipe")->required();
  add_above_file(sub, line, &asked->above);
  auto* steps = sub->add_option("--steps-per-epoch", asked->steps_per_epoch, "for a bare recipe")
                    ->check(daemon::positive_number());
  auto* stage = sub->add_option(
      "--stage", plan.stage,
      "for a bare recipe with stages: run only this stage, by its name; default: all in sequence");
  auto* svg = sub->add_option("--svg", plan.svg_file,
                              "also draw learning rate and sparsity into this file");
  auto* csv =
      sub->add_option("--csv", plan.csv_file, "also write a table of what changes into this file");
  sub->add_option("--json", plan.json_file, "also write all of it as JSON into this file");
  CLI::Option* ranks = add_scale(sub, &asked->scale);
  for (CLI::Option* of_recipe : {steps, stage, svg, csv}) ranks->excludes(of_recipe);
  sub->footer(kScaleFormula);
  set_tensor_command(sub, line, [=](auto) {
    asked->plan.overrides = asked->scale.overrides = daemon::overrides_of(asked->above);
    asked->scale.file = asked->plan.file;
    asked->scale.json_file = asked->plan.json_file;
    if (ranks->count() > 0) return scale_command(asked->scale);
    if (steps->count() > 0) asked->plan.steps_per_epoch = asked->steps_per_epoch;
    return daemon::plan_command(asked->plan);
  });
}

void add_new(CLI::App* app, ParsedLine* line) {
  const auto file = std::make_shared<std::string>();
  CLI::App* parent =
      app->add_subcommand("new", "create a starter project or recipe")->require_subcommand(1);
  CLI::App* sub = parent->add_subcommand("recipe", "a commented recipe with the usual values");
  sub->add_option("OUT", *file, "output file, which must not exist yet. Default: stdout");
  set_command(sub, line, [=] { return new_recipe_command(*file); });
  CLI::App* project = parent->add_subcommand(
      "project", "a folder with an example network and data, ready to train");
  project->add_option("DIR", *file, "the folder; created if missing")->required();
  project->add_flag("--python")->description("network and data in Python")->required();
  set_command(project, line, [=] { return new_project_command(*file); });
}

void add_curves(CLI::App* app, ParsedLine* line) {
  const auto folder = std::make_shared<std::string>(), svg_file = std::make_shared<std::string>();
  CLI::App* sub = app->add_subcommand("curves", "plot a run's loss, sparsity and learning rate");
  sub->add_option("RUN_DIR", *folder, "the run's folder (run.project_dir)")->required();
  sub->add_option("--svg", *svg_file, "also draw the curves into this file");
  set_tensor_command(sub, line, [=](auto) { return curves_command(*folder, *svg_file); });
}

void add_goodput(CLI::App* app, ParsedLine* line) {
  const auto folder = std::make_shared<std::string>();
  CLI::App* sub = app->add_subcommand(
      "goodput", "show which share of a run's time was training, and what took the rest");
  sub->add_option("RUN_DIR", *folder, "the run's folder (run.project_dir)")->required();
  set_tensor_command(sub, line, [=](auto) {  // for the metrics' libraries
    const std::filesystem::path file = Project(*folder).goodput();
    const std::vector<metrics::StartTime> starts = metrics::read_starts(file);
    if (starts.empty())
      throw Error(ExitCode::kInputMissing, "goodput",
                  file.string() + ": no such file, or without a start of the run");
    return daemon::CommandResult{metrics::table_of(metrics::run_time_of(starts))};
  });
}

void add_eval(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<EvalCommandOptions>();
  CLI::App* sub = app->add_subcommand("eval", "evaluate a run's checkpoints, during or after it");
  sub->add_option("FILE", asked->config_file, "the run file")->required();
  sub->add_option("--restore", asked->restore,
                  "latest (the default): the newest checkpoint of the run's folder; PREFIX: this "
                  "one; DIR, of checkpoints or of a run: its newest")
      ->capture_default_str();
  sub->add_flag("--watch", asked->watch,
                "evaluate each existing and each new checkpoint once, until the run has ended");
  add_above_file(sub, line, &asked->above);
  set_tensor_command(sub, line, [=](auto) { return eval_command(*asked); });
}

void add_sensitivity(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<SensitivityOptions>();
  CLI::App* sub = app->add_subcommand(
      "sensitivity", "show how much of each weight can be pruned, by the loss on data.eval");
  sub->add_option("FILE", asked->eval.config_file, "the run file")->required();
  sub->add_option("--restore", asked->eval.restore, "as for eval")->capture_default_str();
  sub->add_option("--levels", asked->levels, "sparsities to try, between 0 and 1")
      ->check(daemon::number(1e-6, 1 - 1e-6))
      ->capture_default_str();
  sub->add_option("--json", asked->json_file, "also write the losses into this file");
  sub->add_option("--svg", asked->svg_file, "also draw the losses into this file");
  add_above_file(sub, line, &asked->eval.above);
  set_tensor_command(sub, line, [=](auto) { return sensitivity_command(*asked); });
}

/// Returns the share of a text such as 90% or 0.9.
double share_of(const std::string& text) {
  const bool is_percent = text.ends_with('%');
  size_t end = 0;
  double share = -1;
  try {
    share = std::stod(text, &end) / (is_percent ? 100 : 1);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end == 0 || end + (is_percent ? 1 : 0) != text.size() || !(share >= 0 && share < 1))
    throw CLI::ValidationError("--target", "'" + text + "' is no share below 1: write 90% or 0.9");
  return share;
}

void add_compress(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<CompressOptions>();
  CLI::App* sub = app->add_subcommand(
      "compress", "prune and quantize a trained network; measure it before and after");
  sub->add_option("FILE", asked->config_file, "run file of the trained network")->required();
  sub->add_option_function<std::string>(
      "--target", [=](const std::string& text) { asked->target = share_of(text); },
      "share of the weights to prune: 90% or 0.9");
  sub->add_flag("--quantize", asked->quantize, "train for int8");
  sub->add_option(
      "--checkpoint", asked->checkpoint,
      "trained weights: a prefix, or the newest of a folder of checkpoints or of a run. "
      "Default: the newest of the run file's run");
  sub->add_option("--epochs", asked->epochs, "epochs of the training that compresses")
      ->check(daemon::number(0.01, 1e6))
      ->capture_default_str();
  sub->add_option("-o,--output", asked->out_folder,
                  "folder of the results; default: RUN/compressed");
  add_ranks_options(sub, &asked->ranks);
  add_above_file(sub, line, &asked->above);
  set_tensor_command(sub, line, [=](auto) { return compress_command(*asked); });
}

void add_infer(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<InferCommandOptions>();
  CLI::App* sub = app->add_subcommand("infer", "run inference with a trained network");
  sub->add_option("--saved_model", asked->saved_model,
                  "the network: an export, RUN/saved_models/<step>, or an ONNX file; latest: the "
                  "newest export of the project");
  sub->add_option("--checkpoint", asked->checkpoint,
                  "the network: a checkpoint, by its prefix, or the newest of a folder of "
                  "checkpoints or of a run; latest: of the project");
  sub->add_option("--config", asked->config_file,
                  "a run file, for its sections inferer, gpu and run, or an inferer.json");
  sub->add_option("--feed", asked->feeds,
                  "inputs: '{type: ...}' as data.eval, a file, train or eval of the run file; "
                  "several are joined in each iteration. Default: inferer.feed, "
                  "else data.eval")
      ->allow_extra_args(false);  // otherwise CLI11 would split a list in brackets at its commas
  sub->add_option("--engine", asked->engine, "inferer.engine: optimized, plain or sparse")
      ->check(CLI::IsMember({"optimized", "plain", "sparse"}));
  sub->add_flag(
      "--explain", asked->explain,
      "with engine sparse: print for each layer the share of kept weights, its engine and "
      "the microseconds of both");
  set_tensor_command(sub, line, [=](auto) { return infer_command(*asked); });
}

void add_reference(CLI::App* app, ParsedLine* line) {
  CLI::App* sub = app->add_subcommand("reference", "print every key of the run file, as Markdown");
  const CLI::Option* flags =
      sub->add_flag("--flags")->description("print the flags of lockstepd that set keys instead");
  const CLI::Option* series = sub->add_flag("--metrics")
                                  ->description("print the Prometheus series instead")
                                  ->excludes("--flags");
  set_tensor_command(sub, line, [=](auto) {
    return daemon::CommandResult{series->count() > 0  ? metrics::series_reference()
                                 : flags->count() > 0 ? daemon::flags_reference()
                                                      : daemon::run_file_reference()};
  });
}

void add_commands(CLI::App* app, ParsedLine* line) {
  const std::string elsewhere = "not used; see lockstepd --version";
  app->set_version_flag("--version",
                        daemon::version_text("lockstep", {elsewhere, elsewhere, elsewhere}));
  daemon::add_help_pages(app);
  app->require_subcommand(1);
  for (const auto add : {add_launch_commands, add_queue_commands, add_check, add_plan, add_new,
                         add_curves, add_goodput, add_eval, add_sensitivity, add_compress,
                         add_infer, add_checkpoint_commands, add_reference})
    add(app, line);
  daemon::add_examples(app, kExamples);
}

/// Returns a message about the first word that should be a command but is not. CLI11 only says that
/// a sub-command is required.
std::string unknown_command(int argc, char** argv, const CLI::App& app) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::vector<const CLI::App*> commands = at->get_subcommands(nullptr);
    if (commands.empty()) return "";
    std::vector<std::string> names;
    at = nullptr;
    for (const CLI::App* sub : commands) {
      names.push_back(sub->get_name());
      if (names.back() == argv[i]) at = sub;
    }
    if (at == nullptr)
      return fmt::format("unknown command '{}'{}", argv[i], lockstep::did_you_mean(argv[i], names));
  }
  return "";
}

int print_fault(const CLI::ParseError& fault, int argc, char** argv, const CLI::App& app) {
  if (fault.get_exit_code() == 0) return app.exit(fault);  // --help and the like
  std::string message = unknown_command(argc, argv, app);
  if (message.empty()) message = fault.what();
  if (fault.get_exit_code() == static_cast<int>(CLI::ExitCodes::ConversionError))
    message += ": needs a number without a unit";
  std::fprintf(stderr, "%s\nRun with --help for more information.\n", message.c_str());
  return static_cast<int>(ExitCode::kUsage);
}

}  // namespace

void set_command(CLI::App* sub, ParsedLine* line, const Command& command) {
  sub->callback([=] { line->command = command; });
}

void add_above_file(CLI::App* sub, ParsedLine* line, daemon::AboveFile* above,
                    const char* help_of_set) {
  sub->add_option("--set", above->sets, help_of_set);
  sub->add_option("--estimator", above->estimator,
                  "plug-in with an estimator; its own flags go after --");
  sub->parse_complete_callback([=] {
    line->takes_flags = true;
    above->flags = line->flags;
  });
}

int run_command_line(int argc, char** argv) {
  ParsedLine line{.flags = daemon::take_flags(&argc, argv)};
  CLI::App app{"Lockstep: start runs; inspect run files, recipes and checkpoints", "lockstep"};
  try {
    add_commands(&app, &line);
    app.parse(argc, argv);
    if (!line.flags.empty() && !line.takes_flags)
      throw Error(
          ExitCode::kUsage, "usage",
          "estimator flags go after -- and work only with run, launch, submit, check, plan, "
          "eval and sensitivity");
    const daemon::CommandResult result = line.command();
    std::fputs(result.text.c_str(), stdout);
    return result.exit_code;
  } catch (const CLI::ParseError& fault) {
    return print_fault(fault, argc, argv, app);
  } catch (const Error& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return static_cast<int>(fault.code());
    // Passed on to lockstep_main.cpp, which continues with lockstep-tensors.
  } catch (const NeedsTensors&) {
    throw;
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "[bug] %s\n", fault.what());
    return static_cast<int>(ExitCode::kBug);
  }
}

}  // namespace lockstep::cli
