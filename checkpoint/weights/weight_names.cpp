// A variable's value is searched in this order: renamed or equal name, the file's own aliases,
// other frameworks' endings.
#include "checkpoint/weights/weight_names.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/tensors/name_scopes.h"

namespace lockstep::checkpoint {
namespace {

/// Groups of name endings that frameworks use for the same thing.
const std::array<std::vector<std::string>, 5> kSameThings = {
    {{"weight", "kernel", "_kernel", "weights", "depthwise_weights", "depthwise_kernel",
      "pointwise_weights", "pointwise_kernel", "embeddings", "_embeddings", "gamma"},
     {"bias", "biases", "beta"},
     {"moving_mean", "running_mean"},
     {"moving_variance", "running_var"},
     {"num_batches", "num_batches_tracked"}}};

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of("./") + 1);  // the whole name if it has no separator
}

std::vector<std::string> names_for(const std::string& last) {
  for (const std::vector<std::string>& names : kSameThings)
    if (std::find(names.begin(), names.end(), last) != names.end()) return names;
  return {};
}

/// Returns the names and all their prefixes that end at a separator, as written in the file.
std::vector<std::string> names_and_parts(const std::vector<std::string>& names) {
  std::set<std::string> all(names.begin(), names.end());
  for (const std::string& name : names)
    for (size_t end = name.find_first_of("./"); end != std::string::npos;
         end = name.find_first_of("./", end + 1))
      all.insert(name.substr(0, end));
  return {all.begin(), all.end()};
}

}  // namespace

bool is_kernel_name(std::string_view name) {
  const std::string_view last = last_part(name);
  return last.ends_with("kernel") || last == "weights" || last.ends_with("_weights");
}

bool is_weight_name(std::string_view name) { return last_part(name).ends_with("weight"); }

WeightNames::WeightNames(const WeightsFile& file, const RenameRules& rules) : file_(file) {
  const std::vector<std::string> names = file.names();
  std::vector<bool> is_used(rules.size(), false);
  for (const std::string& name : names) {
    const auto renamed = rules.apply(name);
    if (renamed) is_used[renamed->rule] = true;
    add(renamed ? renamed->name : plain_name(name), name, renamed.has_value());
  }
  for (size_t rule = 0; rule < rules.size(); ++rule)
    if (!is_used[rule])
      throw Error(
          ExitCode::kConfig, "warm start",
          fmt::format("checkpoint.warm_start_rename: no name there matches '{}', or an "
                      "earlier rule took it (nearest: {})",
                      rules.from(rule),
                      fmt::join(nearest_words(rules.from(rule), names_and_parts(names)), ", ")));
}

void WeightNames::add(const std::string& here, const std::string& there, bool is_renamed) {
  const auto [place, is_new] = there_.emplace(here, there);
  if (is_renamed) {
    renamed_.insert(here);
    moved_.insert(there);
  }
  if (is_new) return;
  if (renamed_.contains(here))
    throw Error(ExitCode::kConfig, "warm start",
                fmt::format("checkpoint.warm_start_rename: '{}' and '{}' there would both be '{}' "
                            "here",
                            place->second, there, here));
  // Of two names that become equal without a rule, the model's own variable has priority.
  if (there.starts_with("model/")) place->second = there;
}

std::optional<std::string> WeightNames::find(const std::string& here) const {
  const auto found = there_.find(here);
  return found == there_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> WeightNames::name_of(const std::string& variable) const {
  const std::string here = plain_name(variable);
  if (const auto name = find(here)) return name;
  // A name that a rule moved away must not be found again under its old name.
  if (const auto name = file_.find(here); name && !moved_.contains(*name)) return name;
  const size_t last = here.rfind('/') + 1;  // 0 if there is no slash
  for (const std::string& ending : names_for(here.substr(last)))
    if (const auto name = find(here.substr(0, last) + ending)) return name;
  return std::nullopt;
}

std::string WeightNames::nearest_to(const std::string& variable) const {
  if (there_.empty()) return "none, as it holds no value";
  std::vector<std::string> all, there;
  for (const auto& [here, name] : there_) all.push_back(here);
  for (const std::string& here : nearest_words(plain_name(variable), all))
    there.push_back(there_.at(here));
  return fmt::format("{}", fmt::join(there, ", "));
}

}  // namespace lockstep::checkpoint
