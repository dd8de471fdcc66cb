#include "daemon/config/estimator_flags.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/flags.h"
#include "base/nearest_word.h"
#include "daemon/config/flag_table.h"
#include "daemon/config/key_names.h"

namespace lockstep::daemon {
namespace {

constexpr std::string_view kSection = "estimator.";

bool is_flag_word(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

Error usage(const std::string& message) { return {ExitCode::kUsage, "usage", message}; }

/// Returns the flags that may follow `--`: --width, --depth.
std::vector<std::string> flag_names(const std::vector<FieldDoc>& fields) {
  std::vector<std::string> names;
  for (const FieldDoc& field : fields)
    if (field.path.starts_with(kSection) && field.path != "estimator.path" &&
        field.path != "estimator.name")
      names.push_back("--" + field.path.substr(kSection.size()));
  return names;
}

}  // namespace

std::vector<std::string> take_flags(int* argc, char** argv) {
  // The words stay in argv; only argc changes, so that CLI11 does not see them.
  char** const end = argv + *argc;
  char** const mark = std::find(argv, end, std::string_view("--"));
  *argc = static_cast<int>(mark - argv);
  return mark == end ? std::vector<std::string>() : std::vector<std::string>(mark + 1, end);
}

std::vector<Override> parse_flags(const std::vector<std::string>& words) {
  std::vector<Override> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_flag_word(words[i]) || words[i].starts_with("--="))
      throw usage(
          fmt::format("behind -- stand flags of the estimator, as -- --width 64; '{}' is "
                      "none",
                      printable(words[i])));
    const size_t mark = words[i].find('=');
    const std::string name = words[i].substr(2, mark == std::string::npos ? mark : mark - 2);
    std::string value = "true";
    if (mark != std::string::npos) value = words[i].substr(mark + 1);
    // A following word that is not a flag is the value; otherwise the flag alone means true.
    else if (i + 1 < words.size() && !is_flag_word(words[i + 1]))
      value = words[++i];
    const std::string path = std::string(kSection) + name;
    if (std::any_of(flags.begin(), flags.end(),
                    [&](const Override& other) { return other.path == path; }))
      throw usage(fmt::format("flag --{} is given twice", printable(name)));
    flags.push_back({.path = path, .value = value, .origin = "flag --" + name, .is_flag = true});
  }
  return flags;
}

std::vector<Override> overrides_of(const std::vector<std::string>& sets,
                                   const std::string& estimator,
                                   const std::vector<std::string>& flags) {
  std::vector<Override> all;
  for (const std::string& text : sets) all.push_back(parse_set(text));
  if (!estimator.empty())
    all.push_back(
        {.path = "estimator.path", .value = quoted_text(estimator), .origin = "--estimator"});
  for (Override& flag : parse_flags(flags)) all.push_back(std::move(flag));
  return all;
}

std::vector<Override> overrides_of_program() {
  std::vector<Override> all;
  for (const auto& [name, value] : flags::given())
    // Marked as from the environment: the command line overrides values from the program's own
    // code.
    all.push_back({.path = std::string(kSection) + name,
                   .value = value,
                   .origin = "flags::set " + name,
                   .from_environment = true,
                   .is_flag = true});
  return all;
}

void require_known_flags(const std::vector<Override>& overrides,
                         const std::vector<FieldDoc>& fields) {
  // Flags of the flag table were resolved before; a remaining one must be a key of the estimator.
  const std::vector<std::string> names = flag_names(fields);
  for (const Override& one : overrides) {
    if (!one.is_flag) continue;
    const std::string name = "--" + one.path.substr(kSection.size());
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::string there = "no estimator with flags is named: give --estimator=LIB";
    if (!names.empty()) there = fmt::format("there are {}", fmt::join(names, ", "));
    std::vector<std::string> all = names;
    for (const Flag& flag : flag_table()) all.push_back(fmt::format("--{}", flag.name));
    throw usage(
        fmt::format("unknown flag {}{}; {}", printable(name), did_you_mean(name, all), there));
  }
}

}  // namespace lockstep::daemon
