#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

/// Facts about parameters and layers, without LibTorch: groups, shards, layers.
namespace lockstep {

/// Parameter groups, which may have their own learning rates and weight decays.
inline constexpr int kWeightGroup = 0;  ///< with weight decay: weights
inline constexpr int kOtherGroup = 1;   ///< biases, normalisation
inline constexpr int kNumParamGroups = 2;
/// Names by group, for people and metrics.
inline constexpr std::array<const char*, kNumParamGroups> kParamGroupNames{"weights", "other"};

/// Text about a parameter that is not in the table.
inline constexpr std::string_view kFrozenInConstructor =
    "frozen in the network's constructor (requires_grad=False)";

/// Elements [begin_E, end_E) of one flat buffer, such as the shard that one rank updates.
struct ParamShard {
  size_t buffer = 0;
  int64_t begin_E = 0, end_E = 0;

  int64_t num_elements() const { return end_E - begin_E; }
  friend bool operator==(const ParamShard&, const ParamShard&) = default;
};

/// Regions whose mean gradients are still being reduced, in the order of their arrival.
struct PendingShards {
  std::vector<ParamShard> regions;
  std::function<void()> wait_for_next;  ///< once per region: returns when its gradients are there
};

/// Layer of a model that multiplies by a weight: linear or convolution.
struct LayerInfo {
  std::string name;          ///< dotted: blocks.0.conv
  int64_t weight_param = 0;  ///< index in the ParamTable
  bool has_batch_norm = false;
};

}  // namespace lockstep
