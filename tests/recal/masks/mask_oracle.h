#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::tests {

/// The definitions of masks again, written for clarity, for MaskUpdate to be compared with.
struct MaskOracle {
  recal::MaskKind mask_kind;
  std::vector<at::Tensor> values;  ///< float64
  std::vector<std::vector<int>> kept;

  struct Group {
    size_t weight;
    std::vector<int64_t> items;  ///< row-major
  };

  double magnitude_of(size_t weight, int64_t item) const {
    const double value = values[weight].view(-1)[item].item<double>();
    return std::isnan(value) ? INFINITY : std::fabs(value);  // the tests use no infinity
  }
  bool is_living(size_t weight, int64_t item) const {
    return kept[weight][static_cast<size_t>(item)] != 0;
  }
  void prune(size_t weight, int64_t item) { kept[weight][static_cast<size_t>(item)] = 0; }

  int64_t group_key(const at::Tensor& weight, int64_t item) const {
    const int64_t num_positions = weight.numel() / (weight.size(0) * weight.size(1));
    const int64_t position = item % num_positions;
    const int64_t input = item / num_positions % weight.size(1);
    const int64_t output = item / num_positions / weight.size(1);
    if (mask_kind.pattern == recal::MaskPattern::kFilter) return output;
    if (mask_kind.pattern == recal::MaskPattern::kChannel) return input;
    return (output * weight.size(1) + input / mask_kind.m) * num_positions + position;
  }

  std::vector<Group> groups() const {
    std::vector<Group> found;
    for (size_t w = 0; w < values.size(); ++w) {
      std::vector<int64_t> keys;
      const size_t first = found.size();
      for (int64_t item = 0; item < values[w].numel(); ++item) {
        const int64_t key = group_key(values[w], item);
        const auto known = std::find(keys.begin(), keys.end(), key);
        if (known == keys.end()) found.push_back({w, {}});
        const auto place = static_cast<size_t>(known - keys.begin());
        if (known == keys.end()) keys.push_back(key);
        found[first + place].items.push_back(item);
      }
    }
    return found;
  }

  /// Places by size; equal ones stay in their order.
  static std::vector<size_t> in_order(const std::vector<double>& sizes) {
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return sizes[a] < sizes[b]; });
    return order;
  }

  void prune_groups(double sparsity) {
    const std::vector<Group> all = groups();
    std::vector<double> sizes;
    auto num_left = std::llround(sparsity * static_cast<double>(all.size()));
    for (const Group& group : all) {
      double sum = 0;
      bool living = false;
      for (const int64_t item : group.items) {
        if (!is_living(group.weight, item)) continue;
        living = true;
        sum += magnitude_of(group.weight, item);
      }
      sizes.push_back(living ? sum / static_cast<double>(group.items.size()) : -1);
    }
    const std::vector<std::vector<int>> before = kept;
    std::vector<size_t> largest(values.size(), all.size());
    for (const size_t place : in_order(sizes)) {
      if (sizes[place] >= 0) largest[all[place].weight] = place;
      if (num_left-- > 0)
        for (const int64_t item : all[place].items) prune(all[place].weight, item);
    }
    for (const size_t place : largest) {  // below 1, one group of each weight stays
      if (sparsity >= 1 || place == all.size()) continue;
      std::vector<int>& left = kept[all[place].weight];
      if (std::count(left.begin(), left.end(), 1) > 0) continue;
      for (const int64_t item : all[place].items)
        left[static_cast<size_t>(item)] = before[all[place].weight][static_cast<size_t>(item)];
    }
  }

  /// One weight after the other, the smallest first, unless its group has none to spare.
  void prune_weights(double sparsity) {
    const bool grouped = mask_kind.pattern == recal::MaskPattern::kNofM;
    std::vector<Group> all;
    if (grouped) all = groups();
    if (!grouped)
      for (size_t w = 0; w < values.size(); ++w) {
        all.push_back({w, std::vector<int64_t>(static_cast<size_t>(values[w].numel()))});
        std::iota(all.back().items.begin(), all.back().items.end(), int64_t{0});
      }
    struct Place {
      double size;
      size_t weight;
      int64_t item;
      size_t group;
    };
    std::vector<Place> order;
    std::vector<int64_t> spare;
    int64_t num_pruned = 0;
    int64_t num_items = 0;
    for (size_t g = 0; g < all.size(); ++g) {
      const auto num_members = static_cast<int64_t>(all[g].items.size());
      const int64_t most = grouped ? mask_kind.m - mask_kind.n : num_members;
      num_items += num_members;
      int64_t num_here = 0;
      for (const int64_t item : all[g].items)
        if (is_living(all[g].weight, item))
          order.push_back({magnitude_of(all[g].weight, item), all[g].weight, item, g});
        else
          ++num_here;
      num_pruned += std::min(num_here, most);
      spare.push_back(most - num_here);
    }
    std::sort(order.begin(), order.end(), [](const Place& a, const Place& b) {
      return std::tie(a.size, a.weight, a.item) < std::tie(b.size, b.weight, b.item);
    });
    int64_t num_left = std::llround(sparsity * static_cast<double>(num_items)) - num_pruned;
    for (const Place& place : order) {
      if (num_left <= 0) break;
      if (spare[place.group]-- <= 0) continue;
      prune(place.weight, place.item);
      --num_left;
    }
  }

  void update(double sparsity) {
    const bool by_weight = mask_kind.pattern == recal::MaskPattern::kUnstructured ||
                           mask_kind.pattern == recal::MaskPattern::kNofM;
    by_weight ? prune_weights(sparsity) : prune_groups(sparsity);
  }
};

}  // namespace lockstep::tests
