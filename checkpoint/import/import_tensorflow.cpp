// Import works in two passes: pair up all names and collect the faults, then copy. So nothing is
// written if anything is wrong.
#include "checkpoint/import/import_tensorflow.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <re2/re2.h>

#include "base/error.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/import/load_weights.h"

namespace lockstep::checkpoint {
namespace {

/// Compiles a pattern; throws Error(kConfig) if it is invalid.
std::unique_ptr<re2::RE2> compiled(const std::string& pattern) {
  auto regex = std::make_unique<re2::RE2>(pattern, re2::RE2::Quiet);
  if (!regex->ok())
    throw Error(ExitCode::kConfig, "import",
                fmt::format("'{}' is not a pattern: {}", pattern, regex->error()));
  return regex;
}

struct Rule {
  explicit Rule(const ImportRule& rule)
      : saved(compiled(rule.saved)), key(rule.key), order(rule.order) {
    std::string why;
    if (!saved->CheckRewriteString(key, &why))
      throw Error(ExitCode::kConfig, "import",
                  fmt::format("'{}' cannot follow '{}': {}", key, rule.saved, why));
  }

  /// Returns the key for a saved name; nullopt if the rule does not match.
  std::optional<std::string> key_of(const std::string& name) const {
    constexpr int kNumGroups = 10;
    re2::StringPiece groups[kNumGroups];
    if (!saved->Match(name, 0, name.size(), re2::RE2::ANCHOR_BOTH, groups, kNumGroups))
      return std::nullopt;
    std::string result;
    check(saved->Rewrite(&result, key, groups, kNumGroups), "a checked rule cannot be applied");
    return result;
  }

  std::unique_ptr<re2::RE2> saved;
  std::string key;
  KernelOrder order;
};

/// Returns the names that no pattern allows.
std::vector<std::string> not_allowed(const std::vector<std::string>& names,
                                     const std::vector<std::string>& patterns) {
  std::vector<std::unique_ptr<re2::RE2>> allowed;
  for (const std::string& pattern : patterns) allowed.push_back(compiled(pattern));
  std::vector<std::string> left;
  for (const std::string& name : names)
    if (std::none_of(allowed.begin(), allowed.end(),
                     [&](const auto& each) { return re2::RE2::FullMatch(name, *each); }))
      left.push_back(name);
  return left;
}

class Import {
 public:
  Import(const std::string& prefix, const StateList& state, const ImportOptions& options)
      : values_(prefix), options_(options) {
    for (const ImportRule& rule : options.rules) rules_.emplace_back(rule);
    for (const StateEntry& entry : state) live_.emplace(entry.key, entry);
  }

  ImportReport run() {
    for (const std::string& name : values_.variables()) pair_up(name);
    for (const auto& [key, entry] : live_)
      if (!taken_by_.contains(key)) report_.missing.push_back(key);
    require_complete();
    values_.read_all(pairs_);
    return std::move(report_);
  }

 private:
  // Pairs a saved name with a live variable; faults are collected.
  void pair_up(const std::string& name) {
    const std::string shown = shown_name(name);
    KernelOrder order = KernelOrder::kAsSaved;
    std::optional<std::string> key = rules_.empty() ? std::optional(shown) : std::nullopt;
    for (size_t i = 0; i < rules_.size() && !key; ++i) {
      key = rules_[i].key_of(shown);
      order = rules_[i].order;
    }
    const auto live = key ? live_.find(*key) : live_.end();
    if (live == live_.end()) {
      report_.unused.push_back(shown);
      return;
    }
    const auto [taker, is_first] = taken_by_.emplace(*key, shown);
    if (!is_first)
      faults_.push_back(
          fmt::format("'{}' and '{}' are both renamed to '{}'", taker->second, shown, *key));
    check_form(name, live->second, order);
    report_.loaded.emplace_back(shown, *key);
    pairs_.push_back({name, live->second});
    if (order == KernelOrder::kOutputsLast && live->second.text == nullptr)
      pairs_.back().entry = {.key = *key, .tensor = as_tensorflow_kernel(live->second.tensor)};
  }

  void check_form(const std::string& name, const StateEntry& live, KernelOrder order) {
    const ValueForm saved = values_.form(name);
    ValueForm turned = saved;
    if (order == KernelOrder::kOutputsLast && saved.shape.size() >= 2) {
      // Outputs, inputs, then the other dimensions in their order.
      std::rotate(turned.shape.begin(), turned.shape.end() - 2, turned.shape.end());
      std::swap(turned.shape[0], turned.shape[1]);
    }
    if (turned == form_of(live)) return;
    faults_.push_back(
        fmt::format("'{}' is {}{}, '{}' is {}", shown_name(name), saved.text(),
                    turned == saved ? "" : fmt::format(" (transposed {})", turned.text()), live.key,
                    form_of(live).text()));
  }

  void require_complete() {
    if (const auto left = not_allowed(report_.missing, options_.allow_missing); !left.empty())
      faults_.push_back(
          fmt::format("no value for '{}' (list names without a value in allow_missing)",
                      fmt::join(left, "', '")));
    if (const auto left = not_allowed(report_.unused, options_.allow_unused); !left.empty())
      faults_.push_back(fmt::format("not used: '{}' (list unused names in allow_unused)",
                                    fmt::join(left, "', '")));
    if (!faults_.empty())
      throw Error(ExitCode::kBadData, "import",
                  fmt::format("{}: {}; nothing was imported", index_path(values_.prefix()),
                              fmt::join(faults_, "; ")));
  }

  SavedValues values_;
  const ImportOptions& options_;
  std::vector<Rule> rules_;
  std::map<std::string, StateEntry> live_;
  std::map<std::string, std::string> taken_by_;  // key -> saved name
  std::vector<NamedEntry> pairs_;                // live as its value is saved
  std::vector<std::string> faults_;
  ImportReport report_;
};

}  // namespace

ImportRule rule_for_prefix(const std::string& saved, const std::string& key) {
  return {re2::RE2::QuoteMeta(saved) + "/(.*)", key + "/\\1"};
}

std::vector<ImportRule> rules_for_layer(const std::string& saved, const std::string& key) {
  const std::string quoted = re2::RE2::QuoteMeta(saved);
  return {{quoted + "/_?kernel", key + "/weight", KernelOrder::kOutputsLast},
          {quoted + "/_?embeddings", key + "/weight"},
          {quoted + "/bias", key + "/bias"}};
}

ImportReport import_tensorflow(const std::string& prefix, const StateList& state,
                               const ImportOptions& options) {
  return Import(prefix, state, options).run();
}

}  // namespace lockstep::checkpoint
