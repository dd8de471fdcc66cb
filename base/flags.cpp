#include "base/flags.h"

#include <charconv>

#include <fmt/format.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/process.h"

namespace lockstep::flags {
namespace {

/// Flags of the process. Only the main thread changes them, before and after a run.
struct Registry {
  std::optional<Values> values;  ///< of the current run
  std::vector<std::pair<std::string, std::string>> given;
  std::optional<size_t> num_of_program;  ///< length of `given` before the first job of a server
};

Registry& registry() {
  static Registry one;
  return one;
}

/// Removes the flags that a job's plug-in has set; the next job must not see them.
void keep_those_of_program() {
  Registry& all = registry();
  if (!all.num_of_program) all.num_of_program = all.given.size();
  all.given.resize(*all.num_of_program);
}

const ProcessState given_flags("flags set by code", keep_those_of_program);

/// Returns the Error of a misused flag.
Error fault(const std::string& message) { return {ExitCode::kUsage, "flags", message}; }

const std::optional<std::string>& found(std::string_view name) {
  const std::optional<Values>& values = registry().values;
  if (!values)
    throw fault(
        fmt::format("flag '{}' is read before the run begins: read it in model(), input() or "
                    "later, where the settings of all ranks are known to be equal",
                    name));
  const auto flag = values->find(name);
  if (flag != values->end()) return flag->second;
  std::vector<std::string> names;
  for (const auto& [known, value] : *values) names.push_back(known);
  throw fault(fmt::format("unknown flag '{}'{}", name, did_you_mean(name, names)));
}

/// Parses a flag's text as a number.
template <typename T>
T number(std::string_view name, const char* kind) {
  const std::string& text = text_value(name);
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* const end = text.data() + text.size();
  T value = 0;
  const auto [last, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || last != end)
    throw fault(fmt::format("flag '{}' is '{}', not a {}", name, text, kind));
  return value;
}

}  // namespace

const std::string& text_value(std::string_view name) {
  const std::optional<std::string>& value = found(name);
  if (!value)
    throw fault(fmt::format("flag '{}' has no value: give it one, or ask has_value() first", name));
  return *value;
}

bool bool_value(std::string_view name) {
  const std::string& text = text_value(name);
  if (text != "true" && text != "false")
    throw fault(fmt::format("flag '{}' is '{}', neither true nor false", name, text));
  return text == "true";
}

int64_t integer_value(std::string_view name) { return number<int64_t>(name, "whole number"); }

double number_value(std::string_view name) { return number<double>(name, "number"); }

bool has_value(std::string_view name) { return found(name).has_value(); }

void set(const std::string& name, const std::string& value) {
  if (registry().values)
    throw fault(
        fmt::format("flag '{}' is set after the run began: flags are fixed then, set it in main() "
                    "or where the plug-in adds its rows",
                    name));
  registry().given.emplace_back(name, value);
}

const std::vector<std::pair<std::string, std::string>>& given() { return registry().given; }

bool are_frozen() { return registry().values.has_value(); }

Frozen::Frozen(Values values) {
  check(!registry().values, "flags of one run at a time");
  registry().values = std::move(values);
}

Frozen::~Frozen() { registry().values.reset(); }

}  // namespace lockstep::flags
