#include "daemon/config/run_options.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <string_view>

#include <fmt/format.h>

#include "metrics/http/listen_address.h"

// Readers of the sections run, preemption, control, gpu and watchdog.
namespace lockstep::daemon {
namespace {

constexpr std::string_view kUnix = "unix", kUnixPrefix = "unix:";

/// Signal that the run file may name.
struct NamedSignal {
  std::string_view name;
  int number;
};

constexpr std::array kSignals{NamedSignal{"SIGUSR1", SIGUSR1}, NamedSignal{"SIGUSR2", SIGUSR2},
                              NamedSignal{"SIGTERM", SIGTERM}, NamedSignal{"SIGINT", SIGINT},
                              NamedSignal{"SIGHUP", SIGHUP}};

const NamedSignal* find_signal(const std::string& name) {
  const auto* const found = std::ranges::find(kSignals, name, &NamedSignal::name);
  return found == kSignals.end() ? nullptr : found;
}

/// Hint for a signal name in lower case or without SIG, or for a signal number.
std::string signal_hint(const std::string& given) {
  std::string name = given;
  for (char& letter : name)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  if (!name.starts_with("SIG")) name.insert(0, "SIG");
  for (const NamedSignal& one : kSignals)
    if (one.name == name || std::to_string(one.number) == given)
      return fmt::format(" (did you mean '{}'?)", one.name);
  return "";
}

}  // namespace

RunOptions read_run_options(ConfigReader in) {
  RunOptions options;
  in.require("name");
  const bool has_name = in.read("name", &options.name, "name in logs, metrics and folders");
  // The default depends on the name, so it is set before project_dir is read.
  options.project_dir = "runs/" + options.name;
  in.read("project_dir", &options.project_dir, "output folder; default runs/<name>");
  in.read("seed", &options.seed, at_least(0), "seed of initial weights and sample order");
  in.read_choice("device", &options.device, {"auto", "cpu", "cuda"},
                 "auto: GPUs if each local rank has one, else CPUs");
  in.read_choice("deterministic", &options.deterministic, {"false", "true", "elastic"},
                 "true: refuse operations with nondeterministic results; elastic: same bits on "
                 "1, 2, 4 and 8 ranks, CPUs only");
  in.read("debug", &options.debug,
          "debug mode: no shuffling, and deterministic: true unless elastic");
  in.read("audit_every", &options.audit_every, at_least(0),
          "steps between audits, in which each rank recomputes another's gradients; 0: none");
  in.read("expect_world_size", &options.expect_world_size, at_least(1), "required number of ranks");
  in.read("expect_nodes", &options.expect_nodes, at_least(1), "required number of hosts");
  in.read("threads", &options.threads, between(0, 1024),
          "compute threads of a rank; 0: the host's cores shared among its ranks (elastic: 1)");
  in.read_choice("bind_cores", &options.bind_cores, {"auto", "true", "false"},
                 "pin each rank to its share of the cores; auto: on hosts with several NUMA nodes");
  // The name becomes the folder's name under runs, and part of file names.
  if (options.name.find('/') != std::string::npos)
    in.fault("name", "'run.name' must not contain a '/'");
  if (has_name && options.name.empty())
    in.fault("name", "'run.name' is empty: it names the run's folder under runs");
  if (options.name == "." || options.name == "..")
    in.fault("name", "'run.name' names a folder under runs, it must not be '" + options.name + "'");
  in.done();
  return options;
}

std::vector<int> PreemptionOptions::stop_signals() const {
  std::vector<int> numbers;
  for (const std::string& name : signals)
    if (const NamedSignal* found = find_signal(name)) numbers.push_back(found->number);
  return numbers;
}

PreemptionOptions read_preemption_options(ConfigReader in) {
  PreemptionOptions options;
  in.read("signals", &options.signals,
          "signals besides SIGUSR1 that save and stop without a time limit: SIGUSR2, SIGTERM, "
          "SIGINT, SIGHUP");
  for (const std::string& name : options.signals)
    if (find_signal(name) == nullptr)
      in.fault("signals", fmt::format("'preemption.signals' takes SIGUSR1, SIGUSR2, SIGTERM, "
                                      "SIGINT and SIGHUP, not '{}'{}",
                                      name, signal_hint(name)));
  in.read("grace_seconds", &options.grace_s, at_least(0),
          "seconds from SIGTERM to the launcher's SIGKILL (mpirun: 1)");
  in.done();
  return options;
}

std::filesystem::path ControlOptions::socket_path(const Project& project) const {
  if (is_off()) return {};
  if (!listen.starts_with(kUnixPrefix)) return project.control_socket();
  // An absolute path replaces the folder.
  return project.folder() / listen.substr(kUnixPrefix.size());
}

ControlOptions read_control_options(ConfigReader in) {
  ControlOptions options;
  in.read("listen", &options.listen,
          "control API: unix: control.sock in the run's folder; unix:PATH; pages: also at "
          "metrics.listen, with metrics.token_file; off");
  const bool is_path =
      options.listen.starts_with(kUnixPrefix) && options.listen.size() > kUnixPrefix.size();
  if (!is_path && options.listen != kUnix && !options.is_on_pages() && !options.is_off())
    in.fault("listen", fmt::format("'control.listen' must be unix, unix:PATH, pages or off, not "
                                   "'{}'",
                                   options.listen));
  const std::filesystem::path path = is_path ? options.listen.substr(kUnixPrefix.size()) : "";
  if (path.filename().string().size() > metrics::kMaxSocketNameBytes)
    in.fault("listen", fmt::format("'control.listen': the name {} is too long for a socket; choose "
                                   "one of at most {} bytes",
                                   path.filename().string(), metrics::kMaxSocketNameBytes));
  in.done();
  return options;
}

dist::GpuMemoryOptions GpuOptions::memory() const {
  // allow_growth, if given, decides; otherwise memory_policy. read_gpu_options() refuses a
  // conflict.
  return {.fraction = per_process_gpu_memory_fraction.value_or(1),
          .at_start = !allow_growth.value_or(memory_policy != "all")};
}

GpuOptions read_gpu_options(ConfigReader in) {
  GpuOptions options;
  bool allow_growth = true;
  if (in.read("allow_growth", &allow_growth,
              "allocate GPU memory as needed; false: as memory_policy: all"))
    options.allow_growth = allow_growth;
  in.read("per_process_gpu_memory_fraction", &options.per_process_gpu_memory_fraction,
          {.at_least = {}, .more_than = 0, .at_most = 1, .less_than = {}},
          "share of the GPU's memory for tensors of a process, without CUDA's and NCCL's own; "
          "default all");
  // The two keys may be given together if they agree.
  const bool has_policy =
      in.read_choice("memory_policy", &options.memory_policy, {"default", "all"},
                     "all: allocate the whole share at the start, or end the run");
  if (has_policy && options.allow_growth &&
      *options.allow_growth == (options.memory_policy == "all"))
    in.fault("allow_growth", allow_growth
                                 ? "'gpu.allow_growth: true' allocates memory as needed, "
                                   "'gpu.memory_policy: all' at the start: remove one"
                                 : "'gpu.allow_growth: false' allocates memory at the start, "
                                   "'gpu.memory_policy: default' as needed: remove one");
  in.done();
  return options;
}

// Watchdog: each phase has its own sub-section with the two limits. A phase without them uses the
// limits of the whole section.

namespace {

struct PhaseWords {
  const char* name;
  const char* what;
};

constexpr std::array<PhaseWords, kNumWatchPhases> kPhases{{
    {"init", "the start, up to the first step"},
    {"step", "a training step"},
    {"evaluation", "an evaluation batch"},
    {"mask_update", "the recipe's changes before a step"},
    {"save", "waits for a save; background saves: checkpoint.timeout_s"},
}};

}  // namespace

const char* phase_name(WatchPhase phase) { return kPhases[static_cast<size_t>(phase)].name; }

std::string WatchdogOptions::hang_key_of(WatchPhase phase) const {
  return of(phase).hang_s ? fmt::format("watchdog.{}.hang_seconds", phase_name(phase))
                          : "watchdog.hang_seconds";
}

double WatchdogOptions::shortest_s() const {
  double shortest = slow_s;
  for (int i = 0; i < kNumWatchPhases; ++i) {
    const auto phase = static_cast<WatchPhase>(i);
    shortest = std::min(shortest, slow_s_of(phase));
    // 0 means no limit.
    if (hang_s_of(phase) > 0) shortest = std::min(shortest, hang_s_of(phase));
  }
  return shortest;
}

void WatchdogOptions::set(const std::string& key, double value_s) {
  const size_t dot = key.find('.');
  const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
  const bool is_slow = key.ends_with("slow_seconds");
  if (section.empty()) (is_slow ? slow_s : hang_s) = value_s;
  for (size_t i = 0; i < kPhases.size(); ++i)
    if (section == kPhases[i].name) (is_slow ? phases[i].slow_s : phases[i].hang_s) = value_s;
}

WatchdogOptions read_watchdog_options(ConfigReader in) {
  WatchdogOptions options;
  in.read("slow_seconds", &options.slow_s, more_than(0),
          "seconds without progress (step, evaluation batch, wait for a save) before a rank logs "
          "its position, and waiting ranks log its name");
  in.read("hang_seconds", &options.hang_s, at_least(0),
          "seconds without progress before a rank ends the run (79) and dumps recent events into "
          "logs; 0: never");
  for (size_t i = 0; i < kPhases.size(); ++i) {
    ConfigReader phase = in.section(kPhases[i].name);
    phase.read("slow_seconds", &options.phases[i].slow_s, more_than(0),
               fmt::format("watchdog.slow_seconds of {}", kPhases[i].what));
    phase.read("hang_seconds", &options.phases[i].hang_s, at_least(0),
               "watchdog.hang_seconds of this phase");
    phase.done();
  }
  in.done();
  return options;
}

}  // namespace lockstep::daemon
