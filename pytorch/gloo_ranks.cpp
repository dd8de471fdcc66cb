#include "pytorch/gloo_ranks.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/ops/from_blob.h>

namespace lockstep::pytorch {
namespace {

constexpr int kTag = 0x10c5;  // of messages between the ranks of a group that is being created

std::vector<at::Tensor> bytes_of(void* bytes, int64_t num_bytes) {
  return {at::from_blob(bytes, {num_bytes}, at::kByte)};
}

}  // namespace

std::string text_for_python(const Error& error, const std::string& argument) {
  constexpr std::string_view kAdvice = " If that is expected, raise ";
  const std::string text = error.what();
  const size_t advice = text.find(kAdvice);
  if (advice == std::string::npos) return text;
  return text.substr(0, advice) + std::string(kAdvice) + argument;
}

GlooRanks::GlooRanks(c10::intrusive_ptr<c10d::Backend> gloo, std::vector<int64_t> world_ranks_N)
    : gloo_(std::move(gloo)),
      world_ranks_N_(std::move(world_ranks_N)),
      members_(static_cast<size_t>(gloo_->getSize())),
      rank_(gloo_->getRank()) {
  std::iota(members_.begin(), members_.end(), 0);
}

dist::cpu::Peer GlooRanks::self() const {
  dist::cpu::Peer self = dist::cpu::this_process();
  self.world_rank = static_cast<int32_t>(world_ranks_N_[static_cast<size_t>(gloo_->getRank())]);
  return self;
}

void GlooRanks::all_gather(const void* own, int64_t num_bytes, void* all_N) const {
  auto* const all = static_cast<char*>(all_N);
  std::memcpy(all + rank_ * num_bytes, own, static_cast<size_t>(num_bytes));
  std::vector<at::Tensor> whole = bytes_of(all, num_bytes * num_ranks());
  try {
    if (rank_ != 0) {
      std::vector<at::Tensor> piece = bytes_of(all + rank_ * num_bytes, num_bytes);
      gloo_->send(piece, members_[0], kTag)->wait();
      gloo_->recv(whole, members_[0], kTag)->wait();
      return;
    }
    for (int r = 1; r < num_ranks(); ++r) {
      std::vector<at::Tensor> piece = bytes_of(all + r * num_bytes, num_bytes);
      gloo_->recv(piece, members_[r], kTag)->wait();
    }
    for (int r = 1; r < num_ranks(); ++r) gloo_->send(whole, members_[r], kTag)->wait();
  } catch (const std::exception& fault) {
    throw Error(ExitCode::kUnavailable, "pytorch", std::string("gloo: ") + fault.what());
  }
}

std::unique_ptr<dist::cpu::RankGroup> GlooRanks::split(int color, int key) const {
  const auto all = dist::cpu::gather(*this, std::array{color, key});
  std::vector<std::pair<int, int>> chosen;  // key, rank here
  for (int r = 0; r < num_ranks(); ++r)
    if (all[r][0] == color) chosen.emplace_back(all[r][1], r);
  std::sort(chosen.begin(), chosen.end());
  auto part = std::make_unique<GlooRanks>(*this);
  part->members_.clear();
  for (const auto& [its_key, r] : chosen) {
    if (r == rank_) part->rank_ = static_cast<int>(part->members_.size());
    part->members_.push_back(members_[r]);
  }
  return part;
}

std::unique_ptr<dist::cpu::RankGroup> GlooRanks::ranks_of_this_host() const {
  const auto place = [](const dist::cpu::Peer& peer) {
    return std::tuple(std::string_view(peer.boot_id.data()), std::string_view(peer.node.data()));
  };
  const std::vector<dist::cpu::Peer> peers = dist::cpu::gather_peers(*this);
  int first = 0;
  while (place(peers[first]) != place(peers[rank_])) ++first;
  return split(first, rank_);
}

std::unique_ptr<dist::cpu::Transport> GlooRanks::make_transport() const {
  return make_socket_transport(std::make_unique<GlooRanks>(*this));
}

}  // namespace lockstep::pytorch
