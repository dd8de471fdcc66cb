#include "daemon/config/overrides.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/config/key_names.h"

namespace lockstep::daemon {
namespace {

/// Keys that exclude each other.
struct Exclusion {
  std::string_view given, excluded;
};
constexpr Exclusion kExclusions[] = {
    {"recipe", "modifiers"},
    {"modifiers", "recipe"},
    {"modifiers", "recipe_stage"},
    {"data.batch_size_per_rank", "data.global_batch_size"},
    {"data.global_batch_size", "data.batch_size_per_rank"},
    {"checkpoint.save_checkpoints_steps", "checkpoint.save_checkpoints_secs"},
    {"checkpoint.save_checkpoints_secs", "checkpoint.save_checkpoints_steps"},
    {"eval.eval_freq", "eval.eval_batches"},
    {"eval.eval_batches", "eval.eval_freq"}};

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path.remove_prefix(dot + 1);
  }
}

/// Returns the pair with this key in a map; a null pair if there is none.
YamlPair find_pair(const YAML::Node& map, const std::string& key) {
  for (const auto& pair : map)
    if (pair.first.IsScalar() && pair.first.Scalar() == key) return {pair.first, pair.second};
  return {YAML::Node(), YAML::Node()};
}

/// Replaces or adds a pair. force_insert() keeps the key's own node and thus its place in the file.
void put(YAML::Node map, const YamlPair& pair) {
  map.remove(pair.key.Scalar());
  map.force_insert(pair.key, pair.value);
}

/// Counts the paths from `from` to `to`, up to 2. More than one means that an alias shares the
/// node.
int64_t num_ways(const YAML::Node& from, const YAML::Node& to) {
  if (from.is(to)) return 1;
  int64_t num = 0;
  if (from.IsMap()) {
    for (const auto& pair : from)
      if (num < 2) num += num_ways(pair.second, to);
  } else if (from.IsSequence()) {
    for (const YAML::Node& item : from)
      if (num < 2) num += num_ways(item, to);
  }
  return num;
}

/// Returns a new map with the same pairs. The map's place is lost; the places of the pairs are
/// kept.
YAML::Node own_copy(const YAML::Node& map) {
  YAML::Node copy(YAML::NodeType::Map);
  for (const auto& pair : map) copy.force_insert(pair.first, pair.second);
  return copy;
}

/// Writes one value into the tree below `root`. Returns what prevents it; empty if done.
std::string put_at_path(const YAML::Node& root, const std::vector<std::string>& path,
                        YamlPair pair) {
  YAML::Node map = root;
  for (size_t i = 0;; ++i) {
    const YamlPair there = find_pair(map, path[i]);
    const bool is_last = i + 1 == path.size();
    // The last key, or the first one that does not exist: `pair` holds the rest of the path.
    if (is_last || !there.key.IsScalar() || there.value.IsNull()) {
      put(map, pair);
      return "";
    }
    if (!there.value.IsMap())
      return fmt::format(
          "'{}' is not a map of keys",
          fmt::join(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1, "."));
    YAML::Node below = there.value;
    // A map that is shared through an alias must change at this path only, so copy it first.
    if (num_ways(root, below) > 1) {
      below.reset(own_copy(there.value));
      put(map, {there.key, below});
    }
    map.reset(below);
    // Descend in `pair` too: its value is the nested map of the remaining path.
    const auto inner = *pair.value.begin();
    pair.reset(inner.first, inner.second);
  }
}

/// Removes keys that contradict the override `by` and come from a weaker origin. Call it after `by`
/// was written: its section is then no longer shared with another path.
void take_back_excluded(const std::vector<Override>& overrides, const Override& by,
                        YAML::Node root) {
  // A key survives if another override of the same strength sets it: then both are a real conflict.
  const auto loses = [&](std::string_view key) {
    return std::none_of(overrides.begin(), overrides.end(), [&](const Override& one) {
      const bool gives_it = key == one.path || key.starts_with(one.path + ".");
      return one.from_environment == by.from_environment && !one.is_default && gives_it;
    });
  };
  for (const Exclusion& rule : kExclusions) {
    if (by.path != rule.given || !loses(rule.excluded)) continue;
    const size_t dot = rule.excluded.rfind('.');
    YAML::Node section = dot == std::string_view::npos
                             ? root
                             : find_at_path(root, rule.excluded.substr(0, dot)).value;
    section.remove(std::string(rule.excluded.substr(dot + 1)));  // npos + 1 is 0
  }
}

/// True for arguments of Python code. daemon/exports rebuilds them from these lines, so quotes must
/// distinguish texts from numbers, and an empty list must not disappear.
bool is_argument(const std::string& path) {
  return path.ends_with(".args") || path.find(".args.") != std::string::npos;
}

std::string argument_text(const YAML::Node& node) {
  if (node.IsMap()) return "{}";
  if (node.IsSequence()) return "[]";
  if (node.IsNull()) return "null";
  return node.Tag() == "!" ? quoted_text(node.Scalar()) : node.Scalar();
}

void collect(const YAML::Node& node, const std::string& path, std::vector<std::string>* lines) {
  if (is_argument(path) && node.size() == 0) {  // size() is 0 for scalars too
    lines->push_back(path + "=" + argument_text(node));
  } else if (node.IsMap()) {
    for (const auto& pair : node)
      collect(pair.second, path.empty() ? pair.first.Scalar() : path + "." + pair.first.Scalar(),
              lines);
  } else if (node.IsSequence()) {
    for (size_t i = 0; i < node.size(); ++i)
      collect(node[i], fmt::format("{}[{}]", path, i), lines);
  } else if (node.IsScalar()) {
    lines->push_back(path + "=" + node.Scalar());
  }
  if (node.Tag().size() > 1) lines->push_back(path + "=" + node.Tag());  // the class of a modifier
}

/// True if the override may be written. `needs_section`: the map that contains the key exists. A
/// default: the key is absent and no section on its path has another type.
bool has_place(const Override& one, const YAML::Node& root) {
  const size_t dot = one.path.rfind('.');
  const std::string section = one.path.substr(0, dot == std::string::npos ? 0 : dot);
  if (one.needs_section && !find_at_path(root, section).value.IsMap()) return false;
  if (!one.is_default) return true;
  for (size_t end = section.find('.'); !section.empty(); end = section.find('.', end + 1)) {
    const YamlPair above = find_at_path(root, section.substr(0, end));
    if (above.key.IsScalar() && !above.value.IsMap() && !above.value.IsNull()) return false;
    if (end == std::string::npos) break;
  }
  return !find_at_path(root, one.path).key.IsScalar();
}

}  // namespace

std::string quoted_text(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}

YamlPair find_at_path(const YAML::Node& root, std::string_view path) {
  YamlPair at(YAML::Node(), root);
  for (const std::string& key : parts_of(path)) {
    if (!at.value.IsMap()) return {YAML::Node(), YAML::Node()};
    const YamlPair below = find_pair(at.value, key);
    at.reset(below.key, below.value);
  }
  return at;
}

Override parse_set(const std::string& text) {
  const size_t mark = text.find('=');
  if (mark == std::string::npos || mark == 0)
    throw Error(
        ExitCode::kUsage, "usage",
        "--set '" + text + "' must read path=value, e.g. --set optimizer.learning_rate=0.1");
  return {text.substr(0, mark), text.substr(mark + 1), "--set " + text.substr(0, mark)};
}

void apply_overrides(const std::vector<Override>& overrides,
                     const std::vector<std::string>& known_paths, YamlDocument* document,
                     Diagnostics* faults) {
  // The environment first, then the command line, whose values win. Defaults come last and fill
  // only absent keys.
  for (const int turn : {0, 1, 2}) {
    for (const Override& one : overrides) {
      if (turn != (one.is_default ? 2 : one.from_environment ? 0 : 1)) continue;
      if (!has_place(one, document->root())) continue;
      if (const std::string fault = refusal_of_key(one.path, known_paths); !fault.empty()) {
        faults->add({"--set " + printable(one.path), 0, 0, fault, ""});
        continue;
      }
      const std::vector<std::string> path = parts_of(one.path);
      const std::optional<YamlPair> pair =
          document->parse_addition({one.origin, path, one.value}, faults);
      if (!pair) continue;
      const std::string obstacle = put_at_path(document->root(), path, *pair);
      if (!obstacle.empty()) faults->add({one.origin, 0, 0, obstacle, ""});
      // An explicit null means "not set", so it excludes nothing.
      else if (!one.is_default &&
               !document->says_null(find_at_path(document->root(), one.path).value))
        take_back_excluded(overrides, one, document->root());
    }
  }
}

std::vector<std::string> flat_settings(const YAML::Node& root) {
  std::vector<std::string> lines;
  collect(root, "", &lines);
  for (std::string& line : lines) line = log::without_passwords(std::move(line));
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace lockstep::daemon
