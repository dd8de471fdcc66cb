#include "cli/command_line.h"

#include <array>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/diagnostics.h"
#include "base/error.h"
#include "cli/new_project.h"
#include "cli/scale_command.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/number_range.h"
#include "daemon/config/program.h"

// The command line of `lockstep`. Parsing only stores the chosen command; run_command_line() calls
// it afterwards. So usage errors never leave a command half done.
namespace lockstep::daemon {
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
     "lockstep check configs/digits.yaml",
     "lockstep plan configs/digits.yaml --svg plan.svg",
     "lockstep plan configs/recipes/digits_prune.yaml --steps-per-epoch 23",
     "lockstep plan configs/digits.yaml --scale 16 --link-gbit 1 --latency-us 50",
     "lockstep new recipe my_recipe.yaml",
     "lockstep new project my_project --python",
     "lockstep curves runs/digits --svg curves.svg",
     "lockstep eval configs/digits.yaml",
     "lockstep eval configs/digits.yaml --watch",
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

struct Tool {
  const TensorCommands& tensors;
  CLI::App app{"Lockstep: start runs; inspect run files, recipes and checkpoints", "lockstep"};
  std::vector<std::string> sets, flags;  ///< flags: of the estimator, from after `--`
  std::string estimator;
  bool takes_flags = false;
  std::string file, svg_file;
  bool is_python = false, lists_flags = false, lists_metrics = false;
  PlanOptions plan;
  ScaleOptions scale;
  int64_t steps_per_epoch = 0;
  EvalCommandOptions to_evaluate;
  InferCommandOptions to_infer;
  Command command;
  CheckpointCommands ckpt{tensors, &command};
  LaunchCommands launching{tensors, &command, &flags};
  QueueCommands queue{tensors, &command, &flags};

  std::vector<Override> overrides() const { return overrides_of(sets, estimator, flags); }

  void add_overrides(CLI::App* sub) {
    sub->add_option("--set", sets, "override one key: path=value");
    sub->add_option("--estimator", estimator,
                    "plug-in with an estimator; its own flags go after --");
    sub->parse_complete_callback([this] { takes_flags = true; });
  }

  void add_check() {
    CLI::App* check =
        app.add_subcommand("check", "check a run file; print each fault with its position");
    check->add_option("FILE", file, "the run file")->required();
    add_overrides(check);
    check->callback([this] { command = [this] { return tensors.check(file, overrides()); }; });
  }

  /// Adds the options of `plan --scale`. Each of the others requires --scale.
  CLI::Option* add_scale(CLI::App* sub) {
    CLI::Option* ranks =
        sub->add_option("--scale", scale.ranks,
                        "predict step time, share of communication and scaling efficiency for up "
                        "to this many ranks, by the formula below")
            ->check(whole_number(1, kMostScaleRanks));
    sub->add_option("--ranks-per-host", scale.ranks_per_host, "for --scale; default: 1")
        ->check(whole_number(1, kMostScaleRanks))
        ->needs(ranks);
    const auto add = [&](const char* flag, auto* value, double least, const char* help) {
      return sub->add_option(flag, *value, help)->check(number(least, 1e9))->needs(ranks);
    };
    add("--link-gbit", &scale.link_gbit, 1e-6, "for --scale: rate of a host's link, each way");
    add("--latency-us", &scale.latency_us, 0, "for --scale: latency of a message, one way");
    add("--gradient-mb", &scale.gradient_mb, 1e-6,
        "for --scale: gradients of a step, 1e6 bytes; default: counted from the network");
    CLI::Option* step = add("--step-ms", &scale.step_ms, 1e-6,
                            "for --scale: step time on one rank; default: steps are timed here");
    add("--backward-ms", &scale.backward_ms, 0,
        "for --step-ms: part spent in backward, which can hide the exchange; default: 0")
        ->needs(step);
    add("--update-ms", &scale.update_ms, 0,
        "for --step-ms: part that does not depend on the batch; default: 0")
        ->needs(step);
    return ranks;
  }

  void plan_scale() {
    command = [this] {
      scale.file = plan.file;
      scale.json_file = plan.json_file;
      scale.overrides = overrides();
      return tensors.plan_scale(scale);
    };
  }

  void add_plan() {
    CLI::App* sub = app.add_subcommand("plan", "print the recipe's actions, step by step");
    sub->add_option("FILE", plan.file, "a run file or a bare recipe")->required();
    add_overrides(sub);
    auto* steps = sub->add_option("--steps-per-epoch", steps_per_epoch, "for a bare recipe")
                      ->check(positive_number());
    auto* stage = sub->add_option("--stage", plan.stage,
                                  "for a bare recipe with stages: run only this stage, by its "
                                  "name; default: all in sequence");
    auto* svg = sub->add_option("--svg", plan.svg_file,
                                "also draw learning rate and sparsity into this file");
    auto* csv = sub->add_option("--csv", plan.csv_file,
                                "also write a table of what changes into this file");
    sub->add_option("--json", plan.json_file, "also write all of it as JSON into this file");
    CLI::Option* ranks = add_scale(sub);
    for (CLI::Option* of_recipe : {steps, stage, svg, csv}) ranks->excludes(of_recipe);
    sub->footer(kScaleFormula);
    sub->callback([this, steps, ranks] {
      if (ranks->count() > 0) return plan_scale();
      if (steps->count() > 0) plan.steps_per_epoch = steps_per_epoch;
      command = [this] {
        plan.overrides = overrides();
        return tensors.plan(plan);
      };
    });
  }

  void add_new() {
    CLI::App* parent =
        app.add_subcommand("new", "create a starter project or recipe")->require_subcommand(1);
    CLI::App* sub = parent->add_subcommand("recipe", "a commented recipe with the usual values");
    sub->add_option("OUT", file, "output file, which must not exist yet. Default: stdout");
    sub->callback([this] { command = [this] { return new_recipe_command(file); }; });
    CLI::App* project = parent->add_subcommand(
        "project", "a folder with an example network and data, ready to train");
    project->add_option("DIR", file, "the folder; created if missing")->required();
    project->add_flag("--python", is_python, "network and data in Python")->required();
    project->callback([this] { command = [this] { return new_project_command(file); }; });
  }

  void add_curves() {
    CLI::App* sub = app.add_subcommand("curves", "plot a run's loss, sparsity and learning rate");
    sub->add_option("RUN_DIR", file, "the run's folder (run.project_dir)")->required();
    sub->add_option("--svg", svg_file, "also draw the curves into this file");
    sub->callback([this] { command = [this] { return tensors.curves(file, svg_file); }; });
  }

  void add_eval() {
    CLI::App* sub = app.add_subcommand("eval", "evaluate a run's checkpoints, during or after it");
    sub->add_option("FILE", to_evaluate.config_file, "the run file")->required();
    sub->add_option("--restore", to_evaluate.restore,
                    "latest (the default): the newest checkpoint of the run's folder; PREFIX: this "
                    "one; DIR, of checkpoints or of a run: its newest")
        ->capture_default_str();
    sub->add_flag("--watch", to_evaluate.watch,
                  "evaluate each existing and each new checkpoint once, until the run has ended");
    add_overrides(sub);
    sub->callback([this] {
      command = [this] {
        to_evaluate.overrides = overrides();
        return tensors.eval(to_evaluate);
      };
    });
  }

  void add_infer() {
    CLI::App* sub = app.add_subcommand("infer", "run inference with a trained network");
    sub->add_option("--saved_model", to_infer.saved_model,
                    "the network: an export, RUN/saved_models/<step>; latest: the newest one of "
                    "the project");
    sub->add_option("--checkpoint", to_infer.checkpoint,
                    "the network: a checkpoint, by its prefix, or the newest of a folder of "
                    "checkpoints or of a run; latest: of the project");
    sub->add_option("--config", to_infer.config_file,
                    "a run file, for its sections inferer, gpu and run, or an inferer.json");
    sub->add_option("--feed", to_infer.feeds,
                    "inputs: '{type: ...}' as data.eval, a file, train or eval of the run file; "
                    "several are joined in each iteration. Default: inferer.feed, else data.eval")
        ->allow_extra_args(false);  // otherwise CLI11 would split a list in brackets at its commas
    sub->callback([this] { command = [this] { return tensors.infer(to_infer); }; });
  }

  void add_reference() {
    CLI::App* sub = app.add_subcommand("reference", "print every key of the run file, as Markdown");
    sub->add_flag("--flags", lists_flags, "print the flags of lockstepd that set keys instead");
    sub->add_flag("--metrics", lists_metrics, "print the Prometheus series instead")
        ->excludes("--flags");
    sub->callback([this] {
      command = [this] {
        return tensors.reference(lists_metrics ? Reference::kMetrics
                                 : lists_flags ? Reference::kFlags
                                               : Reference::kRunFile);
      };
    });
  }

  explicit Tool(const TensorCommands& commands) : tensors(commands) {
    const std::string elsewhere = "not used; see lockstepd --version";
    app.set_version_flag("--version", version_text("lockstep", {elsewhere, elsewhere, elsewhere}));
    add_help_pages(&app);
    app.require_subcommand(1);
    launching.add_to(&app);
    queue.add_to(&app);
    add_check();
    add_plan();
    add_new();
    add_curves();
    add_eval();
    add_infer();
    ckpt.add_to(&app);
    add_reference();
    add_examples(&app, kExamples);
  }
};

const CLI::App* command_named(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : app.get_subcommands(nullptr))
    if (sub->get_name() == name) return sub;
  return nullptr;
}

/// Returns a message about the first word that should be a command but is not. CLI11 only says that
/// a sub-command is required.
std::string unknown_command(int argc, char** argv, const CLI::App& app) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    std::vector<std::string> names;
    for (const CLI::App* sub : at->get_subcommands(nullptr)) names.push_back(sub->get_name());
    if (names.empty()) return "";
    at = command_named(*at, argv[i]);
    if (at == nullptr)
      return fmt::format("unknown command '{}'{}", argv[i], lockstep::did_you_mean(argv[i], names));
  }
  return "";
}

/// Returns CLI11's message, completed where it is unclear.
std::string explained(const CLI::ParseError& fault) {
  const std::string text = fault.what();
  if (fault.get_exit_code() != static_cast<int>(CLI::ExitCodes::ConversionError)) return text;
  return text + ": needs a number without a unit";
}

int tell_fault(const CLI::ParseError& fault, int argc, char** argv, const CLI::App& app) {
  if (fault.get_exit_code() == 0) return app.exit(fault);  // --help and the like
  const std::string unknown = unknown_command(argc, argv, app);
  std::fprintf(stderr, "%s\nRun with --help for more information.\n",
               unknown.empty() ? explained(fault).c_str() : unknown.c_str());
  return static_cast<int>(ExitCode::kUsage);
}

}  // namespace

int run_command_line(const TensorCommands& tensors, int argc, char** argv) {
  Tool tool(tensors);
  tool.flags = take_flags(&argc, argv);
  try {
    tool.app.parse(argc, argv);
    if (!tool.flags.empty() && !tool.takes_flags && !tool.launching.takes_flags() &&
        !tool.queue.takes_flags())
      throw Error(ExitCode::kUsage, "usage",
                  "estimator flags go after -- and work only with run, launch, submit, check, plan "
                  "and eval");
    const CommandResult result = tool.command();
    std::fputs(result.text.c_str(), stdout);
    return result.exit_code;
  } catch (const CLI::ParseError& fault) {
    return tell_fault(fault, argc, argv, tool.app);
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

}  // namespace lockstep::daemon
