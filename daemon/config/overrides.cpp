#include "daemon/config/overrides.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace lockstep::daemon {
namespace {

constexpr std::string_view kPrefix = "LOCKSTEP_";
constexpr std::string_view kVersion = "version";
constexpr size_t kMaxShownBytes = 100;

/// Variables used by the project's own build, launchers and tests; they name no keys.
constexpr std::string_view kOwnVariables[] = {
    "LOCKSTEP_VERSION",       "LOCKSTEP_COMMIT",         "LOCKSTEP_BUILD",
    "LOCKSTEP_CUDA",          "LOCKSTEP_NCCL_MODULE",    "LOCKSTEP_TORCH",
    "LOCKSTEP_MPIRUN_ARGS",   "LOCKSTEP_UPDATE_KERNELS", "LOCKSTEP_REQUIRE_ORACLES",
    "LOCKSTEP_FLIPS",         "LOCKSTEP_KEEP_SVG",       "LOCKSTEP_NETNS",
    "LOCKSTEP_RESTART_COUNT", "LOCKSTEP_STARTED_AT",     "LOCKSTEP_LAST_EXIT_CODE",
    "LOCKSTEP_QUEUED_AT",     "LOCKSTEP_QUEUE"};
constexpr std::string_view kOwnPrefixes[] = {"LOCKSTEP_TEST_", "LOCKSTEP_FAULT_",
                                             "LOCKSTEP_BENCH_"};

bool is_own(std::string_view name) {
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return std::ranges::count(kOwnVariables, name) > 0 || std::ranges::any_of(kOwnPrefixes, begins);
}

/// Returns the sections of all keys: data, data.eval, run, ...
std::vector<std::string> sections_of(const std::vector<std::string>& paths) {
  std::set<std::string> sections;
  for (const std::string& path : paths)
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      sections.insert(path.substr(0, dot));
  return {sections.begin(), sections.end()};
}

std::string section_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

/// Returns the initials of a key's words: lr for learning_rate.
std::string initials(const std::string& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    if (i == 0 || words[i - 1] == '_') out.push_back(words[i]);
  return out;
}

/// Returns the candidate whose last part is similar to `word`, or has `word` as its initials.
std::optional<std::string> nearest_by_last_part(const std::string& word,
                                                const std::vector<std::string>& candidates) {
  std::vector<std::string> last_parts;
  for (const std::string& path : candidates) last_parts.push_back(last_part(path));
  const std::string near = nearest_word(word, last_parts);
  for (size_t i = 0; i < candidates.size(); ++i)
    if (!near.empty() ? last_parts[i] == near : word.size() > 1 && initials(last_parts[i]) == word)
      return candidates[i];
  return std::nullopt;
}

/// Returns the keys directly in a section.
std::vector<std::string> keys_in(const std::string& section,
                                 const std::vector<std::string>& paths) {
  std::vector<std::string> keys;
  for (const std::string& path : paths)
    if (!section.empty() && section_of(path) == section) keys.push_back(path);
  return keys;
}

/// Returns the key that was probably meant. First choice: a key of the same section. If the section
/// has no keys: a key that is similar as a whole. Otherwise: a key of another section with a
/// similar last part.
std::optional<std::string> nearest_key(const std::string& path,
                                       const std::vector<std::string>& paths) {
  const std::vector<std::string> beside = keys_in(section_of(path), paths);
  if (const auto near = nearest_by_last_part(last_part(path), beside)) return near;
  if (beside.empty())
    if (const std::string near = nearest_word(path, paths); !near.empty()) return near;
  return nearest_by_last_part(last_part(path), paths);
}

/// Returns the probable key, or a list of the keys in the deepest existing section of the path.
std::string hint_for(const std::string& path, const std::vector<std::string>& paths) {
  if (const std::optional<std::string> near = nearest_key(path, paths))
    return fmt::format(" (did you mean '{}'?)", *near);
  std::vector<std::string> inside;
  for (std::string section = section_of(path); inside.empty() && !section.empty();
       section = section_of(section))
    inside = keys_in(section, paths);
  if (inside.empty()) {
    inside = sections_of(paths);
    std::erase_if(inside, [](const std::string& name) { return name.find('.') != name.npos; });
  }
  return fmt::format("; available: {}", fmt::join(inside, ", "));
}

/// True for a key below a section whose keys are chosen by the user.
bool is_of_callback(const std::string& path) {
  return (path.starts_with("callbacks.") || path.starts_with("inferer.callbacks.")) &&
         path.back() != '.';
}

/// Converts a variable's name to a path, by the longest matching section: OPTIMIZER_LR ->
/// optimizer.lr.
std::string as_path(std::string_view name, const std::vector<std::string>& sections) {
  std::string path(name);
  for (char& c : path) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  size_t longest = 0;
  std::string dotted = path;
  for (const std::string& section : sections) {
    std::string start = section + "_";
    std::replace(start.begin(), start.end(), '.', '_');
    if (!path.starts_with(start) || section.size() < longest) continue;
    longest = section.size();
    dotted = section + "." + path.substr(start.size());
  }
  return dotted;
}

std::string warning_of(const std::string& name, const std::vector<std::string>& paths) {
  const std::string path =
      as_path(std::string_view(name).substr(kPrefix.size()), sections_of(paths));
  const std::optional<std::string> near = nearest_key(path, paths);
  return fmt::format("{} in the environment is not a key of the run file and is ignored{}",
                     printable(name),
                     near ? fmt::format(" (did you mean {}?)", variable_name(*near)) : "");
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out(text.substr(0, kMaxShownBytes));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return out + (text.size() > kMaxShownBytes ? "..." : "");
}

std::string variable_name(const std::string& path) {
  std::string name(kPrefix);
  for (const char c : path)
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

EnvironmentOverrides overrides_from_environment(const std::vector<std::string>& environment,
                                                const std::vector<std::string>& known_paths) {
  std::vector<std::string> paths;
  // Only `version` is excluded: it cannot be overridden (refusal_of_key()).
  for (const std::string& path : known_paths)
    if (path != kVersion) paths.push_back(path);
  // Nested sections may be given as a whole (LOCKSTEP_DATA_EVAL); top-level ones may not.
  std::vector<std::string> named = paths;
  for (const std::string& section : sections_of(paths))
    if (section.find('.') != std::string::npos) named.push_back(section);

  EnvironmentOverrides found;
  for (const std::string& entry : environment) {
    const size_t mark = entry.find('=');
    const std::string name = entry.substr(0, mark);
    if (mark == std::string::npos || !name.starts_with(kPrefix) || is_own(name)) continue;
    const auto path = std::find_if(named.begin(), named.end(), [&](const std::string& known) {
      return variable_name(known) == name;
    });
    if (path == named.end()) {
      found.warnings.push_back(warning_of(name, paths));
    } else {
      found.list.push_back({*path, entry.substr(mark + 1), "environment " + name, true});
    }
  }
  // Sort sections before their own keys, so that the environment's order has no effect.
  std::sort(found.list.begin(), found.list.end(),
            [](const Override& a, const Override& b) { return a.path < b.path; });
  std::sort(found.warnings.begin(), found.warnings.end());
  return found;
}

std::vector<std::string> process_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    all.emplace_back(*entry);
  return all;
}

namespace {

/// Returns why no override may name this key; empty if one may. Sections above the known keys may
/// be named too.
std::string refusal_of_key(const std::string& path, const std::vector<std::string>& known_paths) {
  if (path == kVersion)
    return "'version' is the version of the file: it can be given only in the file";
  const auto is_known = [&](const std::string& known) {
    return known == path || known.starts_with(path + ".");
  };
  if (std::any_of(known_paths.begin(), known_paths.end(), is_known)) return "";
  if (is_of_callback(path)) return "";  // may have any name: its reader finds the faults
  return fmt::format("unknown key '{}'{}", printable(path), hint_for(printable(path), known_paths));
}

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
    const std::string excluded(rule.excluded);
    YAML::Node section = find_at_path(root, section_of(excluded)).value;
    section.remove(last_part(excluded));
  }
}

/// True for arguments of Python code. infer/exports rebuilds them from these lines, so quotes must
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
  const std::string section = section_of(one.path);
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
  for (const std::string& key : split(path, '.')) {
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
      const std::vector<std::string> path = split(one.path, '.');
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
