#include "recal/schedule/param_choices.h"

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "recal/schedule/param_selector.h"

namespace lockstep::recal {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& message) {
  throw Error(ExitCode::kConfig, "config", fmt::format("optimizer.{}: {}", key, message));
}

NamePattern pattern_of(const std::string& key, const std::string& entry) {
  if (entry.empty()) refuse(key, "an entry is empty: name a parameter, or write a re: pattern");
  std::string error;
  NamePattern pattern(entry, &error);
  if (!error.empty()) refuse(key, error);
  return pattern;
}

std::string nearest_to(const std::string& name, const ParamTable& params) {
  std::vector<std::string> names;
  for (const Param& param : params) names.push_back(param.name);
  return did_you_mean(name, names);
}

/// Returns the last part of a dotted name.
std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

/// Finds the parameter of the same module with another last part.
const Param* find_sibling(const Param& param, std::string_view part, const ParamTable& params) {
  const size_t owner = param.name.size() - last_part(param.name).size();
  const std::string sibling = param.name.substr(0, owner) + std::string(part);
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const Param& other) { return other.name == sibling; });
  return found == params.end() ? nullptr : &*found;
}

/// Returns the group of `groups` for a parameter. Returns "" for others, such as an embedding of a
/// user's network.
std::string_view decay_group_of(const Param& param, const ParamTable& params) {
  if (param.decayed) return "weights";
  const std::string_view part = last_part(param.name);
  if (part == "gamma" || part == "beta" || (part == "weight" && param.tensor.dim() == 1))
    return "normalisation";
  if (part != "bias") return "";
  // Layer types of a user's module are unknown: a bias next to a vector weight counts as a shift.
  const Param* weight = find_sibling(param, "weight", params);
  const bool is_shift = weight != nullptr && weight->tensor.dim() == 1;
  return is_shift ? "normalisation" : "biases";
}

/// Returns the parameters that an entry of this key names.
std::vector<Param*> named_by(const std::string& key, const std::string& entry, ParamTable* params) {
  const NamePattern pattern = pattern_of(key, entry);
  std::vector<Param*> found;
  for (Param& param : *params)
    if (pattern.names(param.name) || pattern.names_above(param.name)) found.push_back(&param);
  if (found.empty())
    refuse(key,
           fmt::format("'{}' names no parameter{}", entry, nearest_to(pattern.dotted(), *params)));
  return found;
}

}  // namespace

void choose_decayed(const std::vector<std::string>& groups,
                    const std::vector<std::string>& exclusions, ParamTable* params) {
  // Two passes: decay_group_of() reads `decayed`, which the second pass overwrites.
  std::vector<bool> is_decayed;
  for (const Param& param : *params) {
    const std::string_view group = decay_group_of(param, *params);
    is_decayed.push_back(std::find(groups.begin(), groups.end(), group) != groups.end());
  }
  for (size_t i = 0; i < params->size(); ++i) (*params)[i].decayed = is_decayed[i];
  for (const std::string& entry : exclusions)
    for (Param* param : named_by("weight_decay_exclude", entry, params)) param->decayed = false;
}

void choose_matrices(const std::vector<std::string>& entries, ParamTable* params) {
  const std::string key = "muon_params";
  for (const std::string& entry : entries) {
    bool any = false;
    for (Param* param : named_by(key, entry, params)) {
      const bool can_be = param->tensor.dim() >= 2 && param->tensor.numel() > 0;
      param->is_matrix = param->is_matrix || can_be;
      any = any || can_be;
    }
    if (!any) refuse(key, fmt::format("'{}' names no parameter of two or more dimensions", entry));
  }
  if (!entries.empty()) return;
  Param* last = nullptr;
  for (Param& param : *params) {
    if (!param.prunable || param.tensor.numel() == 0) continue;
    if (last != nullptr) last->is_matrix = true;
    last = &param;
  }
  if (std::ranges::none_of(*params, &Param::is_matrix))
    refuse("type",
           "muon updates weights of linear and convolution layers except the last, and this "
           "network has none: name some in optimizer.muon_params, or use adamw");
}

void choose_multipliers(const std::vector<std::pair<std::string, double>>& entries,
                        ParamTable* params) {
  const std::string key = "learning_rate_multipliers";
  // Not the order of the file: programs that write YAML sort its keys.
  const auto weight_of = [](const std::pair<std::string, double>& entry) {
    return entry.first.starts_with("re:") ? size_t{0} : entry.first.size();
  };
  auto strongest_first = entries;
  std::ranges::stable_sort(strongest_first, std::ranges::greater(), weight_of);
  std::map<const Param*, const std::pair<std::string, double>*> chosen;
  for (const auto& entry : strongest_first)
    for (Param* param : named_by(key, entry.first, params)) {
      const auto& strongest = *chosen.try_emplace(param, &entry).first->second;
      if (weight_of(entry) == weight_of(strongest) && entry.second != strongest.second)
        refuse(key, fmt::format("'{}' and '{}' give {} different multipliers: name it too",
                                strongest.first, entry.first, param->name));
      param->rate_multiplier = strongest.second;
    }
}

}  // namespace lockstep::recal
