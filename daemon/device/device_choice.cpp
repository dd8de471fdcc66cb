#include "daemon/device/device_choice.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace lockstep::daemon {
namespace {

/// Format of text_of(): '+' or '-', the host name, then one GPU id per line.
constexpr char kSeparator = '\n', kShares = '+', kAlone = '-';

constexpr const char* kCure =
    "give each rank a GPU of its own (Slurm: --gpus-per-task=1), start fewer ranks there, or set "
    "run.device to cpu";

std::string fault_of_few(const VisibleGpus& rank, size_t num_ranks) {
  if (rank.ids.empty())
    return fmt::format("rank {} on {} has no usable GPU: {}", rank.rank, rank.node, kCure);
  return fmt::format("{} ranks on {} see the same {} GPU(s), so rank {} has none: {}", num_ranks,
                     rank.node, rank.ids.size(), rank.rank, kCure);
}

std::string fault_of_shared(const VisibleGpus& first, const VisibleGpus& second,
                            const std::string& id) {
  return fmt::format("ranks {} and {} on {} would both compute on GPU {}: {}", first.rank,
                     second.rank, second.node, id, kCure);
}

/// Returns the host name if GPUs have no ids of their own, otherwise an empty text. Ids are unique
/// across hosts, while containers on one host may have different host names.
std::string place_of(const VisibleGpus& rank) {
  const bool are_named = std::find(rank.ids.begin(), rank.ids.end(), "") == rank.ids.end();
  return are_named && !rank.ids.empty() ? std::string() : rank.node;
}

}  // namespace

bool ranks_may_share(const std::string& nccl_version) {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (text == nullptr || std::string_view(text) != "1") return false;
  int major = 0, minor = 0;
  char dot = 0;
  // An unreadable version leaves 0.0, which does not support sharing.
  std::istringstream(nccl_version) >> major >> dot >> minor;
  // NCCL supports several ranks on one GPU from 2.30 on.
  return std::pair(major, minor) >= std::pair(2, 30);
}

std::string text_of(const VisibleGpus& gpus) {
  std::string text = (gpus.may_share ? kShares : kAlone) + gpus.node;
  for (const std::string& id : gpus.ids) text += kSeparator + id;
  return text;
}

VisibleGpus read_visible_gpus(int rank, const std::string& text) {
  VisibleGpus gpus{.rank = rank, .may_share = text.at(0) == kShares};
  size_t begin = text.find(kSeparator);
  gpus.node = text.substr(1, begin - 1);
  while (begin != std::string::npos) {
    const size_t end = text.find(kSeparator, begin + 1);
    gpus.ids.push_back(text.substr(begin + 1, end == std::string::npos ? end : end - begin - 1));
    begin = end;
  }
  return gpus;
}

GpuChoice choose_gpus(const std::vector<VisibleGpus>& all_N) {
  // Ranks with equal place and GPU list see the same GPUs; they take successive indexes.
  using Sight = std::pair<std::string, std::vector<std::string>>;
  std::map<Sight, int> num_ranks, next_index;
  for (const VisibleGpus& rank : all_N) ++num_ranks[{place_of(rank), rank.ids}];
  std::map<std::pair<std::string, std::string>, const VisibleGpus*> owners;  // by place and GPU
  const bool may_share = std::all_of(all_N.begin(), all_N.end(),
                                     [](const VisibleGpus& rank) { return rank.may_share; });
  GpuChoice choice;
  for (const VisibleGpus& rank : all_N) {
    const Sight sight{place_of(rank), rank.ids};
    int index = next_index[sight]++;
    if (may_share && !rank.ids.empty()) index %= static_cast<int>(rank.ids.size());
    if (static_cast<size_t>(index) >= rank.ids.size())
      return {{}, fault_of_few(rank, static_cast<size_t>(num_ranks[sight]))};
    const std::string& id = rank.ids[static_cast<size_t>(index)];
    // Detects ranks with different lists that would still take the same GPU.
    const auto [owner, is_new] = owners.try_emplace({place_of(rank), id}, &rank);
    if (!is_new && !id.empty() && !may_share)
      return {{}, fault_of_shared(*owner->second, rank, id)};
    choice.index_N.push_back(index);
  }
  return choice;
}

std::string name_of_gpu(const std::string& visible_devices, int index) {
  std::istringstream names(visible_devices);
  std::string name;
  for (int i = 0; std::getline(names, name, ','); ++i)
    if (i == index) return name;
  return std::to_string(index);
}

}  // namespace lockstep::daemon
