#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::tests {

/// The complete modifiers, as `key: value` pairs, to be changed one pair at a time.
struct Item {
  std::string tag;
  std::vector<std::pair<std::string, std::string>> pairs;

  std::string text() const {
    std::string body;
    for (const auto& [key, value] : pairs) body += (body.empty() ? "" : ", ") + key + ": " + value;
    return "!" + tag + " {" + body + "}";
  }
  Item with(const std::string& key, const std::string& value) const {
    Item changed = *this;
    for (auto& pair : changed.pairs)
      if (pair.first == key) return pair.second = value, changed;
    changed.pairs.emplace_back(key, value);
    return changed;
  }
  Item without(const std::string& key) const {
    Item changed = *this;
    std::erase_if(changed.pairs, [&](const auto& pair) { return pair.first == key; });
    return changed;
  }
};

/// `3:col: ` of the first place of `text` in the item's line, which begins with "  - ".
inline std::string place_of(const Item& item, const std::string& text) {
  return "3:" + std::to_string(5 + item.text().find(text)) + ": ";
}

/// Items with each required key. Another modifier tests its keys with its own cases.
inline const std::vector<Item>& complete_items() {
  static const std::vector<Item> items{
      {"EpochRangeModifier", {{"start_epoch", "0.0"}, {"end_epoch", "25.0"}}},
      {"ConstantKSModifier", {{"params", "__ALL__"}}},
      {"GradualKSModifier",
       {{"params", "__ALL__"},
        {"init_sparsity", "0.05"},
        {"final_sparsity", "0.8"},
        {"start_epoch", "5.0"},
        {"end_epoch", "20.0"},
        {"update_frequency", "1.0"}}},
      {"SetLearningRateModifier", {{"start_epoch", "5.0"}, {"learning_rate", "0.1"}}},
      {"LearningRateModifier",
       {{"start_epoch", "0.0"},
        {"end_epoch", "25.0"},
        {"lr_class", "ExponentialLR"},
        {"lr_kwargs", "{gamma: 0.9}"}}},
      {"LearningRateFunctionModifier",
       {{"start_epoch", "0.0"},
        {"end_epoch", "25.0"},
        {"lr_func", "linear"},
        {"init_lr", "0.1"},
        {"final_lr", "0.0"}}},
      {"SetWeightDecayModifier", {{"start_epoch", "5.0"}, {"weight_decay", "0.0"}}},
      {"TrainableParamsModifier", {{"params", "__ALL__"}}},
      {"QuantizationModifier", {{"start_epoch", "0.0"}}},
      {"SetParamModifier", {{"params", "__ALL__"}, {"val", "0.5"}, {"start_epoch", "5.0"}}},
      {"GradualParamModifier",
       {{"params", "__ALL__"},
        {"init_val", "1.0"},
        {"final_val", "0.0"},
        {"start_epoch", "5.0"},
        {"end_epoch", "20.0"},
        {"update_frequency", "1.0"}}},
  };
  return items;
}
inline const Item& item(const std::string& tag) {
  for (const Item& candidate : complete_items())
    if (candidate.tag == tag) return candidate;
  throw std::out_of_range(tag);
}

}  // namespace lockstep::tests
