// `auto` measures after each change of masks. Checkpoints store the result with its fingerprint.
#include "dist/reducer/packing_choice.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::dist {
namespace {

std::string text_of(uint64_t fingerprint, const std::vector<bool>& chosen) {
  std::string text = fmt::format("{:016x} ", fingerprint);
  for (const bool packed : chosen) text += packed ? '1' : '0';
  return text;
}

}  // namespace

std::shared_ptr<const DevicePacking> device_packing_for(Communicator& comm,
                                                        const SyncOptions& options) {
  if (options.sparse_allreduce != "always" || comm.device().is_cpu()) return nullptr;
  const bool is_whole_behind = !options.shard_optimizer && options.overlap != "true";
  if (auto packing = is_whole_behind ? comm.make_packing() : nullptr) return packing;
  throw Error(ExitCode::kConfig, "dist",
              "sync.sparse_allreduce: always on GPUs needs gradients that travel whole and behind "
              "the backward pass, between ranks: with sync.shard_optimizer, sync.overlap: true or "
              "local steps use auto or never");
}

PackingChoice::PackingChoice(std::string mode) : mode_(std::move(mode)) {
  check(mode_ == "auto" || mode_ == "always" || mode_ == "never", "packed: auto, always or never");
}

void PackingChoice::follow(std::vector<bool> can_pack, uint64_t fingerprint) {
  can_pack_ = std::move(can_pack);
  situation_ = fingerprint;
  chosen_.assign(can_pack_.size(), false);
  autotuner_.start(0);
  if (mode_ == "always") chosen_ = can_pack_;
  if (mode_ != "auto" || std::find(can_pack_.begin(), can_pack_.end(), true) == can_pack_.end())
    return;
  if (!adopt_stored()) autotuner_.start(can_pack_.size());
}

bool PackingChoice::adopt_stored() {
  const std::string fingerprint = text_of(situation_, {});
  // A result for other masks, buckets or ranks does not apply.
  if (!stored_.starts_with(fingerprint) || stored_.size() != fingerprint.size() + can_pack_.size())
    return false;
  for (size_t i = 0; i < can_pack_.size(); ++i)
    chosen_[i] = can_pack_[i] && stored_[fingerprint.size() + i] == '1';
  return true;
}

bool PackingChoice::packs(size_t bucket) const {
  // During a trial the second way is "packed", in odd steps.
  return autotuner_.is_running() ? autotuner_.takes_second() && can_pack_.at(bucket)
                                 : chosen_.at(bucket);
}

bool PackingChoice::add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm) {
  if (!autotuner_.is_running()) return false;
  const auto second_is_faster = autotuner_.add_step(buckets, comm);
  if (!second_is_faster) return false;
  for (size_t i = 0; i < can_pack_.size(); ++i) chosen_[i] = can_pack_[i] && (*second_is_faster)[i];
  stored_ = text_of(situation_, chosen_);
  return true;
}

StateList PackingChoice::state() { return {{"_lockstep/sync/packed", {}, &stored_, 0.0}}; }

}  // namespace lockstep::dist
