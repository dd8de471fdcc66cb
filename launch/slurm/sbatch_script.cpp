#include "launch/slurm/sbatch_script.h"

#include <cctype>

#include <fmt/format.h>

#include "base/error.h"
#include "base/exit_class.h"
#include "base/process/shell.h"
#include "launch/slurm/time_limit.h"

namespace lockstep::launch {
namespace {

void require(bool fact, const std::string& what) {
  if (!fact) throw Error(ExitCode::kUsage, "slurm", what);
}

void require_line(const std::string& text, const char* what) {
  require(text.find_first_of("\n\r") == std::string::npos,
          fmt::format("{} holds a line break", what));
}

/// What stands behind the `=` of a directive, as sbatch reads it: it knows quotes as a shell does,
/// but takes a backslash away in single quotes too.
std::string directive_quoted(const std::string& value) {
  std::string doubled;
  for (const char c : value) doubled += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return shell_quoted(doubled);
}

/// In the folder of submission, without characters that sbatch's patterns or a shell would read.
std::string log_file_of(const std::string& name) {
  const auto stays = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 || c == '-' || c == '_' || c == '.' || c == '+';
  };
  std::string plain = name;
  for (char& c : plain)
    if (!stays(static_cast<unsigned char>(c))) c = '_';
  if (plain.starts_with('-') || plain.starts_with('.')) plain.front() = '_';
  return plain + "-%j.log";
}

void require_time(const SlurmJob& job) {
  const auto limit_s = slurm_time_s(job.time_limit);
  require(limit_s.has_value(),
          fmt::format("--time '{}' is none: write minutes as 90, or hours:minutes:seconds as "
                      "1:30:00, or days-hours as 2-12",
                      job.time_limit));
  require(*limit_s == 0 || job.grace_s < *limit_s,
          fmt::format("--grace {} s is to end before the limit --time {}, which is {} s: give "
                      "fewer seconds, or a longer limit",
                      job.grace_s, job.time_limit, *limit_s));
}

void require_sound(const SlurmJob& job) {
  require(job.num_nodes >= 1 && job.ranks_per_node >= 1, "a job needs a node and a rank on it");
  require(job.grace_s >= 1 && job.max_requeues >= 0 && job.gpus_per_rank >= 0,
          "the grace is at least 1 s; requeues and GPUs are counts");
  require(!job.program.empty(), "a job needs a program");
  require(!job.mpi.empty() && shell_quoted(job.mpi) == job.mpi,
          fmt::format("--mpi '{}' is no kind of MPI that srun knows: `srun --mpi=list` shows them, "
                      "as pmix",
                      job.mpi));
  for (const std::string& directive : job.directives) {
    require(directive.starts_with('-'),
            fmt::format("--sbatch '{}' is no option of sbatch: write it with its dashes, as "
                        "--sbatch --partition=long",
                        directive));
    require(!directive.starts_with("--array") && !directive.starts_with("-a"),
            fmt::format("--sbatch '{}': the tasks of an array would all train in one folder, and "
                        "none could be queued again alone: write a job for each run",
                        directive));
  }
  require_time(job);
}

std::string head_of(const SlurmJob& job) {
  std::vector<std::string> directives{
      "--job-name=" + directive_quoted(job.name),
      fmt::format("--nodes={}", job.num_nodes),
      fmt::format("--ntasks-per-node={}", job.ranks_per_node),
      "--time=" + job.time_limit,
      fmt::format("--signal=B:USR1@{}", job.grace_s),
      "--requeue",
      "--open-mode=append",
      "--output=" + log_file_of(job.name),
  };
  if (job.cpus_per_rank)
    directives.push_back(fmt::format("--cpus-per-task={}", *job.cpus_per_rank));
  if (job.gpus_per_rank > 0)
    directives.push_back(fmt::format("--gpus-per-task={}", job.gpus_per_rank));
  directives.insert(directives.end(), job.directives.begin(), job.directives.end());
  std::string text;
  for (const std::string& directive : directives) {
    require_line(directive, "a directive of sbatch");
    text += "#SBATCH " + directive + "\n";
  }
  return text;
}

constexpr const char* kTail = R"sh(
# Slurm tells this shell alone that the time is nearly over: it passes that on to the ranks, which save and stop (75).
trap 'scancel --signal=USR1 "$SLURM_JOB_ID.0" 2>/dev/null' USR1
# SIGTERM (scancel, preemption) comes to the ranks too: they save where that fits into the time that Slurm leaves them.
trap : TERM
{kill_wait}# After scancel the job must end.
is_wanted() {{ [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null)" = RUNNING ]; }}

{srun} &
step=$!
while :; do  # a signal ends `wait`, not the step
  wait "$step"
  kill -0 "$step" 2>/dev/null || break
done
wait "$step"
code=$?

case $code in
  75 | {lost})  # stopped as asked, or ranks are lost: the newest save is what to go on from
    is_wanted || exit "$code"
    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_requeues} ]; then
      echo "$(date -Is) the ranks ended with $code: queued again" >&2
      scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    fi
    echo "$(date -Is) the ranks ended with $code, after ${{SLURM_RESTART_COUNT:-0}} requeues: not queued again" >&2 ;;
esac
exit "$code"
)sh";

constexpr const char* kKillWait =
    R"sh(kill_wait=$(scontrol show config 2>/dev/null | sed -n 's/^KillWait *= *\([0-9][0-9]*\) .*/\1/p')
export LOCKSTEP_PREEMPTION_GRACE_SECONDS="${LOCKSTEP_PREEMPTION_GRACE_SECONDS:-${kill_wait:-30}}"
)sh";

}  // namespace

std::string sbatch_script(const SlurmJob& job) {
  require_sound(job);
  std::string srun = fmt::format("srun --mpi={} --kill-on-bad-exit=1", job.mpi);
  for (const std::string& word : job.program) srun += " " + shell_quoted(word);
  return "#!/bin/bash\n# Made by `lockstep launch slurm`. Give it to sbatch.\n" + head_of(job) +
         fmt::format(kTail, fmt::arg("srun", srun), fmt::arg("max_requeues", job.max_requeues),
                     fmt::arg("lost", codes_for_case(ExitClass::kTransient)),
                     fmt::arg("kill_wait", job.tells_kill_wait ? kKillWait : ""));
}

}  // namespace lockstep::launch
