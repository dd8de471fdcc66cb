#include "checkpoint/files/shared_folder.h"

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/files/rank_faults.h"
#include "dist/agree.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns a random text, so that an old file cannot be mistaken for the new one.
std::string random_text() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}", source(), source(), source());
}

/// True if the file can be read and has this text.
bool holds(const std::filesystem::path& file, const std::string& text) {
  bool equal = false;
  (void)fault_of([&] { equal = files::read(file, 4096) == text; });
  return equal;
}

/// True once the file has this text. Polls with doubling pauses.
bool comes_to_hold(const std::filesystem::path& file, const std::string& text, double patience_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s);
  for (std::chrono::duration<double> pause(0.01);; pause *= 2) {
    if (holds(file, text)) return true;
    if (Clock::now() + pause > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

/// "rank 1 on node3, rank 2 on node4"
std::string blind_ranks(const std::vector<std::string>& blind_hosts) {
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < blind_hosts.size(); ++rank)
    if (!blind_hosts[rank].empty())
      texts.push_back(fmt::format("rank {} on {}", rank, blind_hosts[rank]));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

void require_shared(const std::filesystem::path& folder, const std::string& host,
                    dist::Communicator& ranks, double patience_s) {
  // With one rank there is nobody to share with.
  if (ranks.world_size() == 1) return;
  const bool is_first = ranks.rank() == 0;
  const std::string text = dist::broadcast_text(ranks, is_first ? random_text() : std::string());
  const std::filesystem::path file = folder / (".shared-" + text);
  std::optional<Error> fault;
  if (is_first)
    fault = fault_of([&] {
      files::Writer writer(file);
      writer.append(text);
      writer.sync();
      writer.close();
    });
  // Rank 0's fault first: without its file no rank could see anything.
  if (const auto shared = shared_fault(ranks, fault)) throw Error(*shared).everywhere();
  const bool sees = is_first || comes_to_hold(file, text, patience_s);
  // A blank after the host keeps it non-empty, which marks a rank that does not see the file.
  const auto blind = dist::gather_texts(ranks, sees ? std::string() : host + " ");
  const std::string first_host = dist::broadcast_text(ranks, is_first ? host : std::string());
  // The gather above ends only after every rank has looked, so the file can go.
  if (is_first) (void)fault_of([&] { files::remove_file(file); });
  std::vector<std::string> hosts;
  for (const std::string& each : blind) hosts.push_back(each.substr(0, each.rfind(' ')));
  if (const std::string who = blind_ranks(hosts); !who.empty())
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("{} is not the same folder on all ranks: what rank 0 on {} writes "
                            "there is not seen by {}. Saves need one folder that all hosts share: "
                            "set run.project_dir to one on a network file system, mounted at the "
                            "same place everywhere",
                            folder.string(), first_host, who))
        .everywhere();
}

}  // namespace lockstep::checkpoint
