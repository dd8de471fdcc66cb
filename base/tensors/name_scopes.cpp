#include "base/tensors/name_scopes.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/tensors/params.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kModel = "model/";

/// Returns a scope in the form for comparisons. A trailing slash stays, since it makes the scope an
/// entire part of a name.
std::string prefix_of(std::string_view scope) {
  const bool is_whole_part = scope.ends_with('/') || scope.ends_with('.');
  return plain_name(scope) + (is_whole_part ? "/" : "");
}

/// Returns every name and all its prefixes that end at a slash.
std::vector<std::string> all_paths(const std::vector<std::string>& names) {
  std::set<std::string> paths;
  for (const std::string& name : names) {
    const std::string path = plain_name(name);
    for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1))
      paths.insert(path.substr(0, end));
    paths.insert(path);
  }
  return {paths.begin(), paths.end()};
}

}  // namespace

std::string plain_name(std::string_view name) {
  std::string path(name);
  std::replace(path.begin(), path.end(), '.', '/');
  if (path.starts_with(kModel)) path.erase(0, kModel.size());
  while (path.ends_with('/')) path.pop_back();
  return path;
}

NameScopes::NameScopes(const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    for (size_t start = 0; start <= text.size();) {
      const size_t end = std::min(text.find(',', start), text.size());
      scopes_.emplace_back(trimmed(std::string_view(text).substr(start, end - start), " \t"));
      start = end + 1;
    }
}

NameScopes NameScopes::read(ConfigReader* in, std::string_view key, std::string_view help) {
  std::vector<std::string> texts;
  if (!in->read(key, &texts, help)) return {};
  NameScopes scopes(texts);
  for (const std::string& scope : scopes.scopes_)
    if (plain_name(scope).empty())
      in->fault(key, fmt::format("'{}.{}' contains an empty scope", in->path(), key));
  return scopes;
}

bool NameScopes::cover(std::string_view name) const {
  const std::string path = plain_name(name);
  return std::any_of(scopes_.begin(), scopes_.end(),
                     [&](const std::string& scope) { return path.starts_with(prefix_of(scope)); });
}

void NameScopes::require_matches(std::string_view key, const std::vector<std::string>& names,
                                 const std::vector<std::string>& frozen) const {
  for (const std::string& scope : scopes_) {
    // Each scope alone must match; otherwise a misspelled one would be ignored silently.
    const NameScopes one({scope});
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return one.cover(name); }))
      continue;
    const auto covered = std::find_if(frozen.begin(), frozen.end(),
                                      [&](const std::string& name) { return one.cover(name); });
    if (covered != frozen.end())
      throw Error(
          ExitCode::kConfig, "config",
          fmt::format("{}: '{}' names only parameters that are {}, such as {}: they are not "
                      "trained; remove the scope or requires_grad=False",
                      key, scope, kFrozenInConstructor, *covered));
    throw Error(ExitCode::kConfig, "config",
                fmt::format("{}: no variable's name begins with '{}' (nearest: {})", key, scope,
                            fmt::join(nearest_words(plain_name(scope), all_paths(names)), ", ")));
  }
}

std::string NameScopes::text() const { return fmt::format("{}", fmt::join(scopes_, ", ")); }

}  // namespace lockstep
