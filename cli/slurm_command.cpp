#include <algorithm>
#include <cctype>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process.h"
#include "cli/launching.h"
#include "daemon/config/run_config.h"
#include "launch/ranks.h"

// `lockstep launch slurm`, and the filling of job templates.
namespace lockstep::cli {

std::string filled(std::string_view job_template, const TemplateValues& values) {
  // Every text must occur: a changed template would otherwise silently keep its own value.
  for (const auto& [text, value] : values)
    if (job_template.find(text) == std::string_view::npos)
      throw Error(ExitCode::kBug, "launch", fmt::format("the template has no '{}'", text));
  std::string job;
  // One pass from left to right, so that a replacement is never replaced itself.
  while (!job_template.empty()) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const auto& pair) {
      return job_template.starts_with(pair.first);
    });
    job += found == values.end() ? std::string(1, job_template.front()) : found->second;
    job_template.remove_prefix(found == values.end() ? 1 : found->first.size());
  }
  return job;
}

daemon::CommandResult job_result(const std::string& job, const std::string& out_file,
                                 const std::string& start) {
  if (out_file.empty()) return {job, 0};
  files::write_atomically(out_file, job);
  return {
      fmt::format("{} written; start it with: {} {}\n", out_file, start, shell_quoted(out_file)),
      0};
}

// Values for launch/slurm/job.sbatch. All texts of the user are checked or quoted: the script is
// read by sbatch first and by a shell afterwards.

namespace {

void require(bool fact, const std::string& what) {
  if (!fact) throw Error(ExitCode::kUsage, "slurm", what);
}

void require_line(const std::string& text, const char* what) {
  require(text.find_first_of("\n\r") == std::string::npos,
          fmt::format("{} contains a line break", what));
}

void require_sound(const SlurmJob& job) {
  require(job.num_nodes >= 1 && !job.program.empty(), "a job needs a node and a program");
  require_line(job.name, "run.name");
  require(!job.mpi.empty() && shell_quoted(job.mpi) == job.mpi,
          fmt::format("--mpi '{}' is not a kind of MPI that srun supports: `srun --mpi=list` lists "
                      "them, such as pmix",
                      job.mpi));
  for (const std::string& directive : job.directives) {
    require_line(directive, "a directive of sbatch");
    require(directive.starts_with('-'),
            fmt::format("--sbatch '{}' is not an option of sbatch: write it with its dashes, as "
                        "--sbatch --partition=long",
                        directive));
    require(!directive.starts_with("--array") && !directive.starts_with("-a"),
            fmt::format("--sbatch '{}': the tasks of an array would all train in one folder, and "
                        "none could be requeued alone: write a job for each run",
                        directive));
  }
  const auto limit_s = slurm_time_s(job.time_limit);
  require(limit_s.has_value(),
          fmt::format("--time '{}' is not a time: write minutes as 90, or hours:minutes:seconds as "
                      "1:30:00, or days-hours as 2-12",
                      job.time_limit));
  require(*limit_s == 0 || job.grace_s < *limit_s,
          fmt::format("--grace {} s must be shorter than the limit --time {}, which is {} s: give "
                      "fewer seconds, or a longer limit",
                      job.grace_s, job.time_limit, *limit_s));
}

/// Quotes the value of a directive. sbatch reads quotes like a shell, but also removes backslashes
/// inside single quotes.
std::string directive_quoted(const std::string& value) {
  std::string doubled;
  for (const char c : value) doubled += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return shell_quoted(doubled);
}

/// Returns a log file in the folder of submission. The name has no characters that are special in
/// sbatch's patterns or in a shell.
std::string log_file_of(std::string name) {
  const auto is_special = [](unsigned char c) {
    return std::isalnum(c) == 0 && c < 0x80 &&
           std::string_view("-_.+").find(c) == std::string::npos;
  };
  std::replace_if(name.begin(), name.end(), is_special, '_');
  if (name.starts_with('-') || name.starts_with('.')) name.front() = '_';
  return name + "-%j.log";
}

std::string further_directives(const SlurmJob& job) {
  std::string text;
  if (job.cpus_per_rank > 0) text += fmt::format("\n#SBATCH --cpus-per-task={}", job.cpus_per_rank);
  if (job.gpus_per_rank > 0) text += fmt::format("\n#SBATCH --gpus-per-task={}", job.gpus_per_rank);
  for (const std::string& directive : job.directives) text += "\n#SBATCH " + directive;
  return text;
}

}  // namespace

std::optional<int64_t> slurm_time_s(const std::string& text) {
  if (text == "UNLIMITED" || text == "INFINITE") return 0;
  static const std::regex form(R"((?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?)");
  std::smatch part;
  if (!std::regex_match(text, part, form)) return {};
  const auto count = [&](size_t i) { return part[i].matched ? std::stoll(part[i].str()) : 0; };
  // With days or with three numbers, the first number is hours; otherwise it is minutes.
  const bool begins_with_hours = part[1].matched || part[4].matched;
  const int64_t unit = begins_with_hours ? 60 : 1;
  return count(1) * 86400 + count(2) * 60 * unit + count(3) * unit + count(4);
}

std::string sbatch_script(const SlurmJob& job) {
  require_sound(job);
  std::vector<std::string> words;
  for (const std::string& word : job.program) words.push_back(shell_quoted(word));
  TemplateValues values{
      {"--job-name=digits", "--job-name=" + directive_quoted(job.name)},
      {"--nodes=2", fmt::format("--nodes={}", job.num_nodes)},
      {"--ntasks-per-node=1", fmt::format("--ntasks-per-node={}", job.ranks_per_node)},
      {"--time=24:00:00", "--time=" + job.time_limit},
      {"B:USR1@300", fmt::format("B:USR1@{}", job.grace_s)},
      {"--output=digits-%j.log", "--output=" + log_file_of(job.name) + further_directives(job)},
      {"--mpi=pmix", "--mpi=" + job.mpi},
      {"lockstepd --config configs/digits.yaml", fmt::format("{}", fmt::join(words, " "))},
      {"-lt 50", fmt::format("-lt {}", job.max_requeues)}};
  // The script exports the cluster's KillWait as preemption.grace_seconds. A value of the user
  // takes precedence, so the line becomes a comment.
  if (!job.tells_kill_wait)
    values.emplace_back("export LOCKSTEP_", "# The run sets preemption.grace_seconds: LOCKSTEP_");
  return filled(lockstep_slurm_job, values);
}

daemon::CommandResult slurm_command(const SlurmCommandOptions& options) {
  const daemon::RunConfig config =
      daemon::require_run_config(options.config_file, daemon::overrides_of(options.above));
  SlurmJob job = options.job;
  job.name = config.run.name;
  job.program = {launch::rank_program(options.program), "--config", options.config_file};
  const int64_t num_ranks = int64_t{job.num_nodes} * job.ranks_per_node;
  const daemon::AboveFile above = with_missing(options.above, config.settings,
                                               {fmt::format("run.expect_world_size={}", num_ranks),
                                                fmt::format("run.expect_nodes={}", job.num_nodes)});
  job.tells_kill_wait = !is_given(config.settings, "preemption.grace_seconds");
  const std::vector<std::string> more = lockstepd_arguments(above);
  job.program.insert(job.program.end(), more.begin(), more.end());
  return job_result(sbatch_script(job), options.out_file, "sbatch");
}

}  // namespace lockstep::cli
