#include "recal/schedule/param_selector.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <re2/re2.h>
#include <yaml-cpp/yaml.h>

#include "base/text.h"

// Names, patterns and group numbers by which a modifier selects parameters.
namespace lockstep::recal {
// Patterns come from users' files. RE2 guarantees linear time, and the limits below bound memory.
namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr std::string_view kNoLookAround =
    "; look-ahead and look-behind are not supported: for all names without X write re:^((?!X).)*$, "
    "else list the names";
constexpr int64_t kRegexBytes = 256 << 10;  // limit of RE2's program, about 2,700 instructions

std::string with(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

RE2::Options regex_options() {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kRegexBytes);
  return options;
}

/// Returns X if the pattern is an idiom for "all names without X".
std::optional<std::string> excluded_by(const std::string& regex) {
  static const RE2 each_character(R"(\^?\((?:\?:)?\(\?!(.+)\)\.\)\*\$)");
  static const RE2 at_the_start(R"(\^?\(\?!\.\*(.+)\)(?:\.\*)?\$?)");
  std::string excluded;
  if (!RE2::FullMatch(regex, each_character, &excluded) &&
      !RE2::FullMatch(regex, at_the_start, &excluded))
    return std::nullopt;
  return excluded;
}

bool has_look_around(const std::string& regex) {
  return regex.find("(?!") != std::string::npos || regex.find("(?=") != std::string::npos ||
         regex.find("(?<") != std::string::npos;
}

bool matches_start(const RE2& regex, const std::string& text) {
  return regex.Match(text, 0, text.size(), RE2::ANCHOR_START, nullptr, 0);
}

// A pattern may name a parameter or its layer. Messages suggest names of both kinds.

constexpr std::string_view kAll = "__ALL__";
constexpr std::string_view kAllPrunable = "__ALL_PRUNABLE__";
constexpr size_t kMaxNamesShown = 4;

bool is_word_for_all(const YAML::Node& node) {
  return node.IsScalar() && (node.Scalar() == kAll || node.Scalar() == kAllPrunable);
}

/// Layer of a parameter: blocks.0.conv.weight -> blocks.0.conv. A name without a dot is its own
/// layer.
std::string layer_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

/// True if a pattern selects a parameter by its own name or by its layer's name. An excluding
/// pattern is only applied to the parameter's name: the layer's name must not bring it back.
bool names_param(const NamePattern& pattern, const std::string& param) {
  return pattern.names(param) || (!pattern.excludes() && pattern.names(layer_of(param)));
}

std::vector<std::string> prunable_layers(const std::vector<ParamInfo>& params) {
  std::vector<std::string> layers;
  for (const ParamInfo& param : params)
    if (param.prunable) layers.push_back(layer_of(param.name));
  return layers;
}

/// Message for an entry that selects nothing. what: kind of target, shown: existing targets, names:
/// further names for the hint.
std::string no_match(const NamePattern& pattern, std::string_view what,
                     const std::vector<std::string>& shown, std::vector<std::string> names) {
  if (pattern.is_regex())
    return fmt::format(
        "'{}' matches no {}: a pattern must match from the start of a name; available: {}",
        pattern.text(), what, first_few(shown, kMaxNamesShown));
  names.insert(names.begin(), shown.begin(), shown.end());
  const std::string hint = did_you_mean(pattern.dotted(), names);
  return fmt::format("the model has no {} '{}'{}", what, pattern.text(),
                     hint.empty() ? "; available: " + first_few(shown, kMaxNamesShown) : hint);
}

std::string no_param_message(const NamePattern& pattern, const std::vector<ParamInfo>& params,
                             const std::vector<std::string>& frozen) {
  const auto meant = std::find_if(frozen.begin(), frozen.end(), [&](const std::string& name) {
    return names_param(pattern, name);
  });
  if (meant != frozen.end())
    return fmt::format(
        "'{}' names only parameters that are {}, such as {}: they are neither trained nor pruned; "
        "remove the entry, or freeze them by train.trainable_scopes instead",
        pattern.text(), kFrozenInConstructor, *meant);
  std::vector<std::string> names;
  for (const ParamInfo& param : params) names.push_back(param.name);
  const std::string what = pattern.is_regex() ? "parameter" : "layer or parameter";
  return no_match(pattern, what, prunable_layers(params), std::move(names));
}

std::string no_prunable_message(const NamePattern& pattern, const std::vector<ParamInfo>& params,
                                const std::vector<std::string>& frozen) {
  // An existing but unprunable parameter gets another message than a misspelt name.
  const auto unprunable = std::find_if(params.begin(), params.end(), [&](const auto& param) {
    return names_param(pattern, param.name);
  });
  if (unprunable == params.end()) return no_param_message(pattern, params, frozen);
  return fmt::format(
      "'{}' names only what cannot be pruned ({}): weights of linear and convolution layers can: "
      "{}",
      pattern.text(), unprunable->name, first_few(prunable_layers(params), kMaxNamesShown));
}

std::string no_layer_message(const NamePattern& pattern, const std::vector<LayerInfo>& layers) {
  std::vector<std::string> names;
  for (const LayerInfo& layer : layers) names.push_back(layer.name);
  return no_match(pattern, "linear or convolution layer", names, {});
}

}  // namespace

NamePattern::NamePattern(std::string text, std::string* error)
    : text_(std::move(text)), dotted_(text_) {
  if (!text_.starts_with(kRegexPrefix)) {
    dotted_ = with(text_, '/', '.');
    return;
  }
  if (text_.size() > kMaxBytes) {
    *error = fmt::format("a pattern may have at most {} bytes, this one has {}", kMaxBytes,
                         text_.size());
    return;
  }
  const std::string written = text_.substr(kRegexPrefix.size());
  const std::optional<std::string> excluded = excluded_by(written);
  auto regex = std::make_shared<const RE2>(excluded.value_or(written), regex_options());
  // A pattern that matches the empty text is found in every name.
  if (excluded && regex->ok() && RE2::FullMatch("", *regex))
    *error = fmt::format("'{}' excludes every name: it selects nothing", text_);
  if (!regex->ok())
    *error = fmt::format("'{}' is not a regular expression (RE2): {}{}", text_, regex->error(),
                         has_look_around(excluded.value_or(written)) ? kNoLookAround : "");
  regex_ = std::move(regex);
  excludes_ = excluded.has_value();
}

bool NamePattern::names(const std::string& name) const {
  if (!regex_) return name == dotted_;
  // Users write names in both spellings, and a pattern cannot be translated.
  const std::string slashed = with(name, '.', '/');
  if (excludes_) return !RE2::PartialMatch(name, *regex_) && !RE2::PartialMatch(slashed, *regex_);
  return matches_start(*regex_, name) || matches_start(*regex_, slashed);
}

bool NamePattern::names_above(const std::string& name) const {
  return !regex_ && name.size() > dotted_.size() && name[dotted_.size()] == '.' &&
         name.starts_with(dotted_);
}

std::string of_group(int group) {
  return group == kAllGroups ? "" : " of parameter group " + std::to_string(group);
}

int ParamGroups::first_unknown() const {
  for (const int number : numbers)
    if (number >= kNumParamGroups) return number;
  return -1;
}

bool ParamGroups::names_each_known() const {
  return static_cast<int>(numbers.size()) == kNumParamGroups && first_unknown() < 0;
}

std::string ParamGroups::text() const {
  if (all()) return "";
  if (numbers.size() == 1) return of_group(numbers.front());
  return fmt::format(" of parameter groups {}", fmt::join(numbers, ", "));
}

std::string known_param_groups() {
  return "0 (weights, which decay) and 1 (the rest: biases, normalisation)";
}

bool ParamSelector::read(ConfigReader* in, std::string_view key) {
  constexpr std::string_view kParams = "params", kTargets = "targets";
  if (key == kParams && in->has(kTargets)) {
    if (in->has(kParams))
      in->fault(kTargets, fmt::format("'{}.params' and 'targets' are both given: keep one of them",
                                      in->path()));
    in->take(kParams);
    key = kTargets;
  }
  in->require(key);
  const YAML::Node node =
      in->take(key, "__ALL__ or list of names and re:patterns", "parameters this works on");
  return node.IsDefined() && read_node(in, key, node);
}

bool ParamSelector::read_node(ConfigReader* in, std::string_view key, const YAML::Node& node) {
  // Older recipes write [__ALL__]: a list of one means the same as the scalar.
  const bool is_list_of_one = node.IsSequence() && node.size() == 1;
  const YAML::Node& only = is_list_of_one ? node[0] : node;
  if (is_word_for_all(only)) {
    all_ = only.Scalar() == kAll ? All::kEverything : All::kPrunable;
    return true;
  }
  return node.IsScalar() ? add(in, key, node) : read_list(in, key, node);
}

bool ParamSelector::read_list(ConfigReader* in, std::string_view key, const YAML::Node& list) {
  if (!list.IsSequence() || list.size() == 0) {
    in->refuse(key, fmt::format("must be __ALL__ or a list of names and re:patterns{}",
                                list.IsSequence() ? ", not an empty list" : ""));
    return false;
  }
  bool good = true;
  for (const YAML::Node& item : list) good = add(in, key, item) && good;
  return good;
}

bool ParamSelector::add(ConfigReader* in, std::string_view key, const YAML::Node& node) {
  const auto refuse = [&](std::string message) {
    in->fault_at(node, std::move(message));
    return false;
  };
  if (node.IsMap() && node.size() == 1 && node.begin()->first.IsScalar() &&
      node.begin()->first.Scalar() == "re")
    return refuse(
        "'re: ...' with a space is a map in YAML: remove the space after 're:' or quote the whole "
        "pattern");
  if (!node.IsScalar() || node.Scalar().empty())
    return refuse(fmt::format("an entry of {} must be a name or a re:pattern", key));
  // In a longer list the word would make the other entries meaningless.
  if (is_word_for_all(node))
    return refuse(fmt::format("{0} already means every layer: write '{1}: {0}' without a list",
                              node.Scalar(), key));
  std::string error;
  const NamePattern pattern(node.Scalar(), &error);
  if (!error.empty()) return refuse(error);
  entries_.push_back({pattern, location_of(in->document(), node)});
  return true;
}

std::vector<int64_t> ParamSelector::select(
    size_t n, const std::function<bool(size_t)>& is_candidate,
    const std::function<bool(const NamePattern&, size_t)>& is_meant,
    const std::function<std::string(const NamePattern&)>& no_match_message,
    Diagnostics* unmatched) const {
  // With a word for all there are no entries, and every candidate is chosen.
  std::vector<bool> chosen(n, all_ != All::kNo);
  for (const Entry& entry : entries_) {
    bool any = false;
    for (size_t i = 0; i < n; ++i) {
      if (!is_candidate(i) || !is_meant(entry.pattern, i)) continue;
      any = chosen[i] = true;
    }
    if (!any && !unmatched->full())
      unmatched->add(entry.location.fault(no_match_message(entry.pattern)));
  }
  std::vector<int64_t> indexes;
  for (size_t i = 0; i < n; ++i)
    if (chosen[i] && is_candidate(i)) indexes.push_back(static_cast<int64_t>(i));
  return indexes;
}

std::vector<int64_t> ParamSelector::resolve_prunable(const std::vector<ParamInfo>& params,
                                                     Diagnostics* unmatched,
                                                     const std::vector<std::string>& frozen) const {
  return select(
      params.size(), [&](size_t i) { return params[i].prunable; },
      [&](const NamePattern& pattern, size_t i) { return names_param(pattern, params[i].name); },
      [&](const NamePattern& pattern) { return no_prunable_message(pattern, params, frozen); },
      unmatched);
}

std::vector<int64_t> ParamSelector::resolve_any(const std::vector<ParamInfo>& params,
                                                Diagnostics* unmatched,
                                                const std::vector<std::string>& frozen) const {
  return select(
      params.size(), [&](size_t i) { return all_ != All::kPrunable || params[i].prunable; },
      [&](const NamePattern& pattern, size_t i) { return names_param(pattern, params[i].name); },
      [&](const NamePattern& pattern) { return no_param_message(pattern, params, frozen); },
      unmatched);
}

std::vector<int64_t> ParamSelector::resolve_layers(const std::vector<LayerInfo>& layers,
                                                   Diagnostics* unmatched) const {
  return select(
      layers.size(), [](size_t) { return true; },
      [&](const NamePattern& pattern, size_t i) {
        return pattern.names(layers[i].name) || pattern.names_above(layers[i].name);
      },
      [&](const NamePattern& pattern) { return no_layer_message(pattern, layers); }, unmatched);
}

std::string ParamSelector::text() const {
  if (all_ != All::kNo) return std::string(all_ == All::kPrunable ? kAllPrunable : kAll);
  std::vector<std::string> texts;
  for (const Entry& entry : entries_) texts.push_back(entry.pattern.text());
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

}  // namespace lockstep::recal
