// Canonical text of a timeline, and the comparison of two such texts. The text does not depend on
// the order of modifiers in the recipe. It is stored in checkpoints: a change of its form makes
// every earlier run look like another recipe.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/yaml/config_reader.h"
#include "recal/schedule/timeline.h"

namespace lockstep::recal {
namespace {

std::string text_of(const ParamSet& set) {
  const bool by_magnitude = set.score.kind == PruneScore::kMagnitude;
  return fmt::format("{}{}{}{}: {}", set.mask_rule.kind.text(),
                     set.mask_rule.global ? " global" : "",
                     set.momentum_buffer_reset ? " momentum_buffer_reset" : "",
                     by_magnitude ? "" : " " + set.score.text(), fmt::join(set.names, " "));
}

/// Numbers each different set once, in the order of its text.
std::map<std::string, int> numbered(const std::vector<ParamSet>& sets) {
  std::map<std::string, int> numbers;
  for (const ParamSet& set : sets) numbers[text_of(set)] = 0;
  int next = 0;
  for (auto& [text, number] : numbers) number = next++;
  return numbers;
}

std::string group_text(int group) { return group == kAllGroups ? "all" : std::to_string(group); }

/// Target of an action, in two words: "group all", "params 3", "loss all".
std::string target_of(const Action& action, int param_set) {
  if (traits_of(action.kind).is_on_loss()) return "loss all";
  const bool is_for_group =
      action.kind == ActionKind::kSetLearningRate || action.kind == ActionKind::kSetWeightDecay;
  return is_for_group ? "group " + group_text(action.group) : fmt::format("params {}", param_set);
}

/// Line of one action. The order of its fields must not change: lines are stored and compared.
std::string line_of(const Action& action, int param_set, const std::vector<LrSchedule>& formulas,
                    const std::vector<ParamTransform>& transforms) {
  const std::string target = target_of(action, param_set);
  if (action.transform >= 0)
    return fmt::format("step {} {} {}: {}\n", action.step, traits_of(action.kind).name, target,
                       transforms[static_cast<size_t>(action.transform)].name);
  const std::string value = action.formula < 0
                                ? fmt::format("{}", action.value)
                                : formulas[static_cast<size_t>(action.formula)].canonical_text();
  return fmt::format("step {} {} {}: {}\n", action.step, traits_of(action.kind).name, target,
                     value);
}

// Parses two canonical texts (Timeline::canonical_text) and compares them entry by entry. The
// parser reads only texts of its own version. Texts of others are reported as incomparable.

/// Identity of an entry without its value: step and a text such as "prune of head.weight".
using Key = std::pair<int64_t, std::string>;

struct Parsed {
  std::string version;
  std::map<std::string, std::string> settings;    // by name, as in the text
  std::map<std::string, std::string> param_sets;  // by number
  std::multimap<Key, std::string> entries;        // values by key
};

/// Returns the text before the first `stop`. Removes both from `rest`.
std::string_view cut(std::string_view* rest, std::string_view stop) {
  const size_t at = rest->find(stop);
  const std::string_view head = rest->substr(0, at);
  rest->remove_prefix(at == std::string_view::npos ? rest->size() : at + stop.size());
  return head;
}

/// Shortens a set: "unstructured: a b c" -> "a and 2 more"; with another kind of mask "a (2:4)".
std::string set_text(std::string_view set) {
  const std::string_view rule = cut(&set, ": ");
  std::string text(set);
  size_t num_names = 1;
  for (const char c : set) num_names += c == ' ' ? 1 : 0;
  if (num_names > 1) text = fmt::format("{} and {} more", cut(&set, " "), num_names - 1);
  return rule == "unstructured" ? text : fmt::format("{} ({})", text, rule);
}

/// Parses "STEP KIND (group|params|loss) TARGET: VALUE".
void parse_entry(std::string_view line, Parsed* parsed) {
  const std::optional<int64_t> step = parse_integer(cut(&line, " "));
  const std::string kind(cut(&line, " "));
  const std::string_view word = cut(&line, " ");
  const std::string target(cut(&line, ": "));
  std::string what = "the loss";
  if (word == "group") what = target == "all" ? "all groups" : "group " + target;
  if (word == "params") what = set_text(parsed->param_sets[target]);
  parsed->entries.emplace(Key{step.value_or(-1), kind + " of " + what}, line);
}

Parsed parse(std::string_view text) {
  Parsed parsed;
  parsed.version = cut(&text, "\n");
  while (!text.empty()) {
    std::string_view line = cut(&text, "\n");
    const std::string word(cut(&line, " "));
    if (word == "params") {
      const std::string number(cut(&line, " "));
      parsed.param_sets[number] = line;
    } else if (word == "step") {
      parse_entry(line, &parsed);
    } else {
      parsed.settings[word] = line;
    }
  }
  return parsed;
}

/// Difference at one key: values that only one side has.
struct Difference {
  Key key;
  std::string saved, now;  // empty: missing on that side
};

std::vector<Difference> differences(std::multimap<Key, std::string> saved,
                                    std::multimap<Key, std::string> now) {
  // First removes equal entries from both sides. Then pairs what remains by key.
  for (auto entry = saved.begin(); entry != saved.end();) {
    auto [first, last] = now.equal_range(entry->first);
    while (first != last && first->second != entry->second) ++first;
    if (first == last) {
      ++entry;
      continue;
    }
    now.erase(first);
    entry = saved.erase(entry);
  }
  std::vector<Difference> found;
  while (!saved.empty() || !now.empty()) {
    // Both sides are sorted by key: this merges them and pairs equal keys.
    const bool has_saved =
        now.empty() || (!saved.empty() && saved.begin()->first <= now.begin()->first);
    const bool has_now =
        saved.empty() || (!now.empty() && now.begin()->first <= saved.begin()->first);
    found.push_back({has_saved ? saved.begin()->first : now.begin()->first,
                     has_saved ? saved.begin()->second : "", has_now ? now.begin()->second : ""});
    if (has_saved) saved.erase(saved.begin());
    if (has_now) now.erase(now.begin());
  }
  return found;
}

std::string values_text(const Difference& difference) {
  if (difference.now.empty()) return difference.saved + " only in the checkpoint";
  if (difference.saved.empty()) return difference.now + " only now";
  return fmt::format("{} in the checkpoint, {} now", difference.saved, difference.now);
}

std::string line_of(const Difference& difference, int64_t step) {
  return fmt::format("step {}{}: {}: {}", difference.key.first,
                     difference.key.first < step ? " (past)" : "", difference.key.second,
                     values_text(difference));
}

std::string rest_text(const std::vector<Difference>& all, size_t num_shown, int64_t step) {
  size_t num_past = 0;
  for (size_t i = num_shown; i < all.size(); ++i) num_past += all[i].key.first < step ? 1 : 0;
  return fmt::format("and {} entries more, {} of them past", all.size() - num_shown, num_past);
}

void add_settings(const Parsed& saved, const Parsed& now, std::vector<std::string>* lines) {
  std::set<std::string> names;
  for (const Parsed* side : {&saved, &now})
    for (const auto& [name, value] : side->settings) names.insert(name);
  const auto value_in = [](const Parsed& side, const std::string& name) -> std::string {
    const auto place = side.settings.find(name);
    return place == side.settings.end() ? "nothing" : place->second;
  };
  for (const std::string& name : names) {
    const std::string old_value = value_in(saved, name), value = value_in(now, name);
    std::string words = name;
    for (char& c : words) c = c == '_' ? ' ' : c;
    const auto shown = [](const std::string& text) { return text == "-1" ? "no limit" : text; };
    const bool is_unused = old_value == "unused" || value == "unused";  // entries show the change
    if (old_value != value && !is_unused)
      lines->push_back(
          fmt::format("{}: {} in the checkpoint, {} now", words, shown(old_value), shown(value)));
  }
}

}  // namespace

std::string Timeline::canonical_text() const {
  std::string out = fmt::format(
      "lockstep timeline 2\nsteps_per_epoch {}\nbase_learning_rate {}\ntotal_steps {}\n"
      "quantized_weights {}\n",
      steps_per_epoch_,
      sets_learning_rate() ? fmt::format("{}", base_learning_rate_) : "unused",  // optimizer's own
      total_steps_.value_or(-1), quantizes_per_channel_ ? "per_channel" : "per_tensor");
  if (!frozen_names_.empty()) out += "frozen_at_start " + frozen_names_ + "\n";
  // Sets are numbered by their text, so that the numbers do not depend on the order of modifiers.
  const std::map<std::string, int> numbers = numbered(param_sets_);
  for (const auto& [text, number] : numbers) out += fmt::format("params {} {}\n", number, text);
  std::vector<int> number_of_set;
  for (const ParamSet& set : param_sets_) number_of_set.push_back(numbers.at(text_of(set)));
  std::vector<std::pair<int64_t, std::string>> lines;
  for (const Action& action : actions_) {
    const int set =
        action.param_set < 0 ? -1 : number_of_set[static_cast<size_t>(action.param_set)];
    lines.emplace_back(action.step, line_of(action, set, rate_formulas_, transforms_));
  }
  std::sort(lines.begin(), lines.end());
  for (const auto& [step, line] : lines) out += line;
  return out;
}

std::vector<std::string> timeline_changes(const std::string& saved_canonical,
                                          const std::string& now_canonical, int64_t step) {
  if (saved_canonical == now_canonical) return {};
  const Parsed saved = parse(saved_canonical);
  const Parsed now = parse(now_canonical);
  if (saved.version != now.version)
    return {
        "the checkpoint's schedule has the format of another version of this program and cannot be "
        "compared"};
  std::vector<std::string> lines;
  add_settings(saved, now, &lines);
  const std::vector<Difference> all = differences(saved.entries, now.entries);
  const size_t num_shown = std::min(all.size(), kMaxChangeLines);
  for (size_t i = 0; i < num_shown; ++i) lines.push_back(line_of(all[i], step));
  if (num_shown < all.size()) lines.push_back(rest_text(all, num_shown, step));
  return lines;
}

}  // namespace lockstep::recal
