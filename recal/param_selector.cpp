#include "recal/param_selector.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <re2/re2.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::recal {
namespace {

constexpr std::string_view kAll = "__ALL__";
constexpr std::string_view kAllPrunable = "__ALL_PRUNABLE__";
constexpr std::string_view kRegexPrefix = "re:";
constexpr size_t kMaxNamesShown = 4;

bool means_all(std::string_view text) { return text == kAll || text == kAllPrunable; }
bool is_regex(std::string_view text) { return text.substr(0, kRegexPrefix.size()) == kRegexPrefix; }

std::string with(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

/// blocks.0.conv.weight -> blocks.0.conv; a name without a dot is its own layer.
std::string layer_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

RE2::Options regex_options() {
  RE2::Options options;
  options.set_log_errors(false);
  return options;
}

bool matches_start(const RE2& regex, const std::string& text) {
  return regex.Match(text, 0, text.size(), RE2::ANCHOR_START, nullptr, 0);
}

/// Both names of a parameter in both spellings.
bool regex_names(const RE2& regex, const std::string& name) {
  const std::string layer = layer_of(name);
  return matches_start(regex, name) || matches_start(regex, layer) ||
         matches_start(regex, with(name, '.', '/')) || matches_start(regex, with(layer, '.', '/'));
}

std::string shortened(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamesShown);
  const std::string list = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown == names.size() ? list : fmt::format("{} and {} more", list, names.size() - shown);
}

std::vector<std::string> prunable_layers(const std::vector<ParamInfo>& params) {
  std::vector<std::string> layers;
  for (const ParamInfo& param : params)
    if (param.prunable) layers.push_back(layer_of(param.name));
  return layers;
}

/// Why an entry that selects nothing does so, and what may have been meant.
std::string no_match_message(const std::string& text, const std::vector<int64_t>& matched,
                             const std::vector<ParamInfo>& params) {
  const std::vector<std::string> layers = prunable_layers(params);
  if (!matched.empty()) {
    return fmt::format(
        "'{}' names only what cannot be pruned ({}): weights of linear and convolution layers can: "
        "{}",
        text, params[static_cast<size_t>(matched.front())].name, shortened(layers));
  }
  if (is_regex(text))
    return fmt::format(
        "'{}' matches no parameter: a pattern must match from the start of a name; there are {}",
        text, shortened(layers));
  std::vector<std::string> names = layers;
  for (const ParamInfo& param : params) names.push_back(param.name);
  const std::string hint = did_you_mean(with(text, '/', '.'), names);
  return fmt::format("the model has no layer or parameter '{}'{}", text,
                     hint.empty() ? "; there are " + shortened(layers) : hint);
}

}  // namespace

std::vector<ParamInfo> param_infos(const ParamTable& params) {
  std::vector<ParamInfo> infos;
  infos.reserve(params.size());
  for (const Param& param : params)
    infos.push_back(
        {param.name, param.prunable, param.tensor.defined() ? param.tensor.numel() : 0});
  return infos;
}

bool ParamSelector::read(YamlFields* in, std::string_view key) {
  in->require(key);
  const YAML::Node node =
      in->take(key, "__ALL__ or list of names and re:patterns", "parameters this works on");
  if (!node.IsDefined()) return false;
  if (node.IsScalar() && means_all(node.Scalar())) return all_ = true;
  if (node.IsScalar()) return add(node, in->document(), in->faults());
  if (!node.IsSequence() || node.size() == 0) {
    in->fault(key, fmt::format("'{}.{}' must be __ALL__ or a list of names and re:patterns{}",
                               in->path(), key, node.IsSequence() ? ", not an empty list" : ""));
    return false;
  }
  if (node.size() == 1 && node[0].IsScalar() && means_all(node[0].Scalar())) return all_ = true;
  bool good = true;
  for (const YAML::Node& item : node) good = add(item, in->document(), in->faults()) && good;
  return good;
}

bool ParamSelector::add(const YAML::Node& node, const YamlDocument& document, Faults* faults) {
  const auto refuse = [&](std::string message) {
    return faults->add(document.fault_at(node, std::move(message))), false;
  };
  if (node.IsMap() && node.size() == 1 && node.begin()->first.IsScalar() &&
      node.begin()->first.Scalar() == "re")
    return refuse(
        "'re: ...' with a space is a map in YAML: remove the space behind 're:' or quote the whole "
        "pattern");
  if (!node.IsScalar() || node.Scalar().empty())
    return refuse("an entry of params must be a name or a re:pattern");
  const std::string& text = node.Scalar();
  if (means_all(text))
    return refuse(
        fmt::format("{} already means every layer: write 'params: {}' without a list", text, text));
  if (is_regex(text)) {
    const RE2 regex(text.substr(kRegexPrefix.size()), regex_options());
    if (!regex.ok())
      return refuse(fmt::format("'{}' is no regular expression (RE2): {}", text, regex.error()));
  }
  entries_.push_back({text, place_of(document, node)});
  return true;
}

std::vector<int64_t> ParamSelector::matches(const Entry& entry,
                                            const std::vector<ParamInfo>& params) const {
  std::vector<int64_t> found;
  const auto collect = [&](const auto& meant) {
    for (size_t i = 0; i < params.size(); ++i)
      if (meant(params[i].name)) found.push_back(static_cast<int64_t>(i));
  };
  if (is_regex(entry.text)) {
    const RE2 regex(entry.text.substr(kRegexPrefix.size()), regex_options());
    collect([&](const std::string& name) { return regex_names(regex, name); });
  } else {
    const std::string dotted = with(entry.text, '/', '.');
    collect([&](const std::string& name) { return name == dotted || layer_of(name) == dotted; });
  }
  return found;
}

std::vector<int64_t> ParamSelector::resolve_prunable(const std::vector<ParamInfo>& params,
                                                     Faults* faults) const {
  std::set<int64_t> chosen;
  const auto choose = [&](int64_t index) {
    if (params[static_cast<size_t>(index)].prunable) chosen.insert(index);
    return params[static_cast<size_t>(index)].prunable;
  };
  for (int64_t i = 0; all_ && i < static_cast<int64_t>(params.size()); ++i) choose(i);
  for (const Entry& entry : entries_) {
    const std::vector<int64_t> matched = matches(entry, params);
    int64_t num_chosen = 0;
    for (const int64_t index : matched) num_chosen += choose(index) ? 1 : 0;
    if (num_chosen == 0)
      faults->add(entry.place.fault(no_match_message(entry.text, matched, params)));
  }
  return {chosen.begin(), chosen.end()};
}

std::string ParamSelector::text() const {
  if (all_) return std::string(kAll);
  std::vector<std::string> texts;
  for (const Entry& entry : entries_) texts.push_back(entry.text);
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

}  // namespace lockstep::recal
