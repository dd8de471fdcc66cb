#include "daemon/run/consistency_checks.h"

#include <sstream>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "daemon/config/version.h"
#include "dist/agree.h"
#include "train/gradients/elastic.h"

// Every rank computes a text; only a digest is compared in the usual case of equality. The lines
// themselves are sent to explain a difference.
namespace lockstep::daemon {
namespace {

/// Compares lists of lines over the ranks. The lines are sent only if their digests differ. The
/// error contains the first differences.
void require_equal_lines(dist::Communicator& control, const std::string& what,
                         const std::vector<std::string>& lines) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  if (dist::all_equal(control, fnv1a64(text))) return;
  const std::vector<std::string> texts = dist::gather_texts(control, text);
  const auto lines_of = [](const std::string& all) {
    std::vector<std::string> list;
    std::istringstream in(all);
    for (std::string line; std::getline(in, line);) list.push_back(line);
    std::sort(list.begin(), list.end());
    return list;
  };
  const std::vector<std::string> first = lines_of(texts[0]);
  std::string message = what + " differ between ranks:";
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> other = lines_of(texts[rank]);
    std::vector<std::string> only_first, only_other;
    std::set_difference(first.begin(), first.end(), other.begin(), other.end(),
                        std::back_inserter(only_first));
    std::set_difference(other.begin(), other.end(), first.begin(), first.end(),
                        std::back_inserter(only_other));
    for (const std::string& line : only_first)
      message += fmt::format("\n  rank 0 has {}, rank {} does not", line, rank);
    for (const std::string& line : only_other)
      message += fmt::format("\n  rank {} has {}, rank 0 does not", rank, line);
  }
  throw Error(ExitCode::kDisagree, "start",
              message.substr(0, 4000) + "\nstart every rank with the same files and programs")
      .everywhere();
}

}  // namespace

void check_world_size(const RunOptions& options, const dist::ProcessInfo& process) {
  if (options.expect_world_size && *options.expect_world_size != process.world_size)
    throw Error(
        ExitCode::kConfig, "start",
        fmt::format("the world has {} rank(s), run.expect_world_size is {}: start with mpirun -n "
                    "{} or change the key",
                    process.world_size, *options.expect_world_size, *options.expect_world_size))
        .everywhere();
  if (options.expect_nodes && *options.expect_nodes != process.num_nodes)
    throw Error(ExitCode::kConfig, "start",
                fmt::format("the world spans {} host(s), run.expect_nodes is {}: look at the host "
                            "list or change the key",
                            process.num_nodes, *options.expect_nodes))
        .everywhere();
  if (options.is_elastic() && !train::is_elastic_world_size(process.world_size))
    throw Error(ExitCode::kConfig, "start",
                fmt::format("run.deterministic: elastic gives the same bits on 1, 2, 4 or 8 ranks, "
                            "the world has {}: start with one of these numbers, or set it to true",
                            process.world_size))
        .everywhere();
}

void check_equal_programs(const RunConfig& config, const std::string& mpi_version,
                          dist::Communicator& control) {
  const VersionFacts facts = version_facts();
  require_equal_lines(
      control, "programs or libraries",
      {"version " + facts.version, "commit " + facts.commit, "LibTorch " + facts.torch,
       "compiler " + facts.compiler, "build " + facts.build_type, "build id " + facts.build_id,
       "MPI " + mpi_version});
  // Only after the programs: other versions may have other settings.
  require_equal_lines(control, "settings", config.settings);
}

void check_equal_models(const TrainingContext& context) {
  std::vector<std::string> lines;
  for (const Param& param : context.model->params())
    lines.push_back(
        fmt::format("parameter {} [{}]", param.name, fmt::join(param.tensor.sizes(), ", ")));
  lines.push_back("training data sha256 " + context.facts.data_sha256);
  if (context.eval_data) lines.push_back("evaluation data sha256 " + context.eval_data->digest());
  require_equal_lines(context.control, "models or data", lines);
  dist::require_equal(context.control, "the recipe's timeline", context.facts.timeline);
}

}  // namespace lockstep::daemon
