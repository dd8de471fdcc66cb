#include "daemon/config/key_names.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>

#include <unistd.h>

#include <fmt/format.h>

#include "base/nearest_word.h"

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
    "LOCKSTEP_RESTART_COUNT", "LOCKSTEP_QUEUE"};
constexpr std::string_view kOwnPrefixes[] = {"LOCKSTEP_TEST_", "LOCKSTEP_FAULT_",
                                             "LOCKSTEP_BENCH_"};

bool is_own(std::string_view name) {
  return std::find(std::begin(kOwnVariables), std::end(kOwnVariables), name) !=
             std::end(kOwnVariables) ||
         std::any_of(std::begin(kOwnPrefixes), std::end(kOwnPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

/// Returns the sections of all keys: data, data.eval, run, ...
std::vector<std::string> sections_of(const std::vector<std::string>& paths) {
  std::set<std::string> sections;
  for (const std::string& path : paths)
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      sections.insert(path.substr(0, dot));
  return {sections.begin(), sections.end()};
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
    if (!section.empty() && path.starts_with(section + ".") &&
        path.find('.', section.size() + 1) == std::string::npos)
      keys.push_back(path);
  return keys;
}

std::string section_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
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
  return fmt::format("; there are {}", fmt::join(inside, ", "));
}

/// True for a key below a section whose keys are chosen by the user.
bool is_of_callback(const std::string& path) {
  for (const std::string_view section : {"callbacks.", "inferer.callbacks."})
    if (path.starts_with(section) && path.size() > section.size() && path.back() != '.')
      return true;
  return false;
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
  return fmt::format("{} in the environment names no key of the run file and is ignored{}",
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

std::string refusal_of_key(const std::string& path, const std::vector<std::string>& known_paths) {
  if (path == kVersion)
    return "'version' says how the file itself is to be read: it can be given in the file only";
  const auto is_known = [&](const std::string& known) {
    return known == path || known.starts_with(path + ".");
  };
  if (std::any_of(known_paths.begin(), known_paths.end(), is_known)) return "";
  if (is_of_callback(path)) return "";  // may have any name: its reader finds the faults
  return fmt::format("unknown key '{}'{}", printable(path), hint_for(printable(path), known_paths));
}

std::string variable_name(const std::string& path) {
  std::string name = upper(path);
  std::replace(name.begin(), name.end(), '.', '_');
  return std::string(kPrefix) + name;
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

}  // namespace lockstep::daemon
