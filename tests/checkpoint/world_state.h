#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "base/simd/bit_mask.h"
#include "base/tensors/state_list.h"

namespace lockstep::checkpoint::tests {

/// One of every kind of state, as rank `rank` of a world holds it: whole tensors, a moment divided
/// over the ranks (two stretches each), a pruned weight, a pruned moment that is divided as well,
/// numbers and a text. Values follow from `seed`; what a rank does not hold is kNotHeld.
struct WorldState {
  static constexpr int64_t kRows = 60, kColumns = 35, kNum = kRows * kColumns;
  static constexpr float kNotHeld = -999;

  WorldState(int64_t seed, int rank, int world_size)
      : weight(values(seed)),
        moment(values(seed + 1)),
        statistic(at::arange(7, at::kDouble) + seed),
        mask_bits(at::zeros({num_mask_bytes(kNum)}, at::kByte)),
        pruned_weight(values(seed + 2)),
        pruned_moment(values(seed + 3)),
        step(seed),
        text("seed " + std::to_string(seed % 10)) {
    for (const int64_t part : {rank, rank + world_size})
      held.push_back({kNum * part / (2 * world_size), kNum * (part + 1) / (2 * world_size)});
    auto* bits = mask_bits.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < kNum; ++i)
      if ((i * 7 + seed) % 5 == 0) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | 1U << (i % 8));
    for (const at::Tensor& pruned : {pruned_weight, pruned_moment})
      zero_pruned(pruned.mutable_data_ptr(), bits, kNum, 4);
    for (const at::Tensor& divided : {moment, pruned_moment}) forget_what_is_not_held(divided);
  }

  StateList list(bool sparse = false) {
    StateList all = {
        {.key = "model/weight", .tensor = weight, .steady = true},
        {.key = "optimizer/moment", .tensor = moment, .held = held, .steady = true},
        {.key = "model/statistic", .tensor = statistic},
        {.key = "_lockstep/masks/pruned", .tensor = mask_bits},
        {.key = "model/pruned", .tensor = pruned_weight, .steady = true},
        {.key = "optimizer/pruned", .tensor = pruned_moment, .held = held, .steady = true},
        {.key = "_lockstep/step", .tensor = view_of(&step)},
        {.key = "_lockstep/note", .tensor = {}, .text = &text}};
    for (StateEntry& entry : all)
      if (sparse && entry.key.ends_with("/pruned") && !entry.key.starts_with("_lockstep")) {
        entry.kept_bits = mask_bits;
        entry.kept_key = "_lockstep/masks/pruned";
      }
    return all;
  }

  /// Changes the tensors as an update does; pruned elements stay zero.
  void change_what_is_steady() {
    for (const at::Tensor& tensor : {weight, moment, pruned_weight, pruned_moment}) tensor.mul_(-3);
  }
  /// Changes the other values as forward, backward and the loop do.
  void change_the_rest() {
    statistic.fill_(-1);
    step = -1;
    text = "something else that is longer than what was there";
  }

  bool operator==(const WorldState& other) const {
    return at::equal(weight, other.weight) && at::equal(moment, other.moment) &&
           at::equal(statistic, other.statistic) && at::equal(mask_bits, other.mask_bits) &&
           at::equal(pruned_weight, other.pruned_weight) &&
           at::equal(pruned_moment, other.pruned_moment) && step == other.step &&
           text == other.text;
  }

  std::vector<ElementRange> held;
  at::Tensor weight, moment, statistic, mask_bits, pruned_weight, pruned_moment;
  int64_t step;
  std::string text;

 private:
  static at::Tensor values(int64_t seed) {
    return at::arange(1, kNum + 1, at::kFloat).reshape({kRows, kColumns}) + 10000 * seed;
  }
  void forget_what_is_not_held(const at::Tensor& tensor) const {
    const at::Tensor all = tensor.clone();
    tensor.fill_(kNotHeld);
    for (const ElementRange& range : held)
      tensor.view(-1)
          .slice(0, range.begin_E, range.end_E)
          .copy_(all.view(-1).slice(0, range.begin_E, range.end_E));
  }
};

}  // namespace lockstep::checkpoint::tests
