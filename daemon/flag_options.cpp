#include "daemon/flag_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/nearest_word.h"
#include "daemon/config/key_names.h"
#include "daemon/config/preset.h"

// Registers the flag table as CLI11 options. CLI11 only collects the texts; overrides() checks and
// converts them.
namespace lockstep::daemon {
namespace {

/// Returns the option's names: --eval_freq,--eval_batches
std::string option_names(const Flag& flag) {
  std::string names = fmt::format("--{}", flag.name);
  if (!flag.alias.empty()) names += fmt::format(",--{}", flag.alias);
  return names;
}

std::string group_of(const Flag& flag) {
  return fmt::format("{} flags (docs/flags.md)", flag.group);
}

CLI::Option* add(const Flag& flag, CLI::App* app) {
  const std::string help(flag.help);
  CLI::Option* option =
      flag.kind == Flag::kBool
          ? app->add_flag(option_names(flag), help)
          : app->add_option(
                option_names(flag), [](const CLI::results_t&) { return true; }, help);
  if (flag.kind != Flag::kBool) option->type_name(std::string(kind_text(flag.kind)));
  if (!flag.preset.empty()) option->default_str(std::string(flag.preset));
  // TakeAll, because overrides() reports a flag that is given twice.
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return option->group(group_of(flag));
}

/// Adds --nodebug for a bool; returns null for other kinds.
CLI::Option* add_negated(const Flag& flag, CLI::App* app) {
  if (flag.kind != Flag::kBool) return nullptr;
  const std::string help =
      fmt::format("--{}=false", flag.name);  // a temporary one would be a value
  CLI::Option* option = app->add_flag(fmt::format("--no{}", flag.name), help);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return option->group(group_of(flag));
}

void require_no_value(const Flag& flag, const CLI::Option& negated) {
  for (const std::string& value : negated.results())  // CLI11 reports "true" if there is no value
    if (value != "true")
      throw Error(ExitCode::kUsage, "usage",
                  fmt::format("--no{0} takes no value, not '{1}': it means --{0}=false", flag.name,
                              printable(value)));
}

/// Returns the long names of all options, for suggestions.
std::vector<std::string> all_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace

FlagOptions::FlagOptions(CLI::App* app) {
  for (const Flag& flag : flag_table())
    options_.push_back({&flag, add(flag, app), add_negated(flag, app)});
}

std::vector<Override> FlagOptions::overrides() const {
  std::vector<Override> all;
  for (const auto& [flag, option, negated] : options_) {
    std::vector<std::string> values = option->results();
    if (negated != nullptr) {
      require_no_value(*flag, *negated);
      values.insert(values.end(), negated->count(), "false");
    }
    if (values.empty()) continue;
    const std::string name = fmt::format("--{}", flag->name);
    if (values.size() > 1)
      throw Error(ExitCode::kUsage, "usage",
                  fmt::format("{} is given {} times ({}): give it once", name, values.size(),
                              printable(fmt::format("{}", fmt::join(values, ", ")))));
    for (Override& one : overrides_of_flag(*flag, values.front(), "flag " + name))
      all.push_back(std::move(one));
  }
  return all;
}

void refuse_empty_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--") || word.find('=') != word.size() - 1) continue;
    throw Error(ExitCode::kUsage, "usage",
                fmt::format("{} has no value: give one, or leave the flag out", printable(word)));
  }
}

std::string unknown_words(const CLI::App& app) {
  std::vector<std::string> lines;
  bool follows_a_flag = false;
  for (const std::string& word : app.remaining()) {
    // Words after an unknown flag may be its value; report only the flag.
    const std::string name = word.substr(0, word.find('='));
    const bool is_value = follows_a_flag && !name.starts_with("-");
    follows_a_flag = name.starts_with("-") && name == word;
    if (is_value) continue;
    if (name.starts_with("-"))
      lines.push_back(
          fmt::format("[usage] unknown flag {}{}; flags of an estimator stand behind --",
                      printable(name), did_you_mean(name, all_names(app))));
    else
      lines.push_back(
          fmt::format("[usage] '{}' belongs to no flag; a pattern stands in quotes "
                      "(--train_metadata 'data/train*'), a truth value behind = "
                      "(--debug=false)",
                      printable(word)));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace lockstep::daemon
