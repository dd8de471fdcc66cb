#include "recal/params/decay_exclusions.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/nearest_word.h"
#include "recal/params/name_pattern.h"

namespace lockstep::recal {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ExitCode::kConfig, "config", "optimizer.weight_decay_exclude: " + message);
}

NamePattern pattern_of(const std::string& entry) {
  if (entry.empty()) refuse("an entry is empty: name a parameter, or write a re: pattern");
  std::string error;
  NamePattern pattern(entry, &error);
  if (!error.empty()) refuse(error);
  return pattern;
}

std::string nearest_to(const std::string& name, const ParamTable& params) {
  std::vector<std::string> names;
  for (const Param& param : params) names.push_back(param.name);
  return did_you_mean(name, names);
}

}  // namespace

void exclude_from_decay(const std::vector<std::string>& entries, ParamTable* params) {
  for (const std::string& entry : entries) {
    const NamePattern pattern = pattern_of(entry);
    bool any = false;
    for (Param& param : *params) {
      if (!pattern.names(param.name) && !pattern.names_above(param.name)) continue;
      param.decayed = false;
      any = true;
    }
    if (!any)
      refuse(
          fmt::format("'{}' names no parameter{}", entry, nearest_to(pattern.dotted(), *params)));
  }
}

}  // namespace lockstep::recal
