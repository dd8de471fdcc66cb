#include "base/diagnostics.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr size_t kMaxComparedBytes = 100;

/// Returns the Levenshtein distance: insertions, removals and replacements.
size_t edit_distance(std::string_view word, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  // Only one row of the distance table is needed at a time.
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  // row[j] is the distance of the first i letters of `word` to the first j letters of `other`.
  for (size_t i = 1; i <= word.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j < row.size(); ++j) {
      const size_t replace = diagonal + (word[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replace}));
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // A smaller distance than this is a typo. Replacing every letter of a word is not.
  size_t best_distance = std::min(std::max<size_t>(2, word.size() / 3) + 1, word.size());
  if (word.size() > kMaxComparedBytes) return best;  // too long to be a typo
  for (const std::string& candidate : candidates) {
    if (candidate.size() >= word.size() + best_distance ||
        word.size() >= candidate.size() + best_distance)
      continue;  // the distance is at least the difference of the lengths
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_word(word, candidates);
  return near.empty() ? "" : " (did you mean '" + near + "'?)";
}

std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& candidates, size_t count) {
  // Only the start of very long words is compared, to limit the time.
  const std::string_view compared = word.substr(0, kMaxComparedBytes);
  std::vector<std::pair<size_t, const std::string*>> by_distance;
  for (const std::string& candidate : candidates)
    by_distance.emplace_back(
        edit_distance(compared, std::string_view(candidate).substr(0, kMaxComparedBytes)),
        &candidate);
  std::stable_sort(by_distance.begin(), by_distance.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> nearest;
  for (size_t i = 0; i < std::min(count, by_distance.size()); ++i)
    nearest.push_back(*by_distance[i].second);
  return nearest;
}

// Diagnostics: the text of all faults ends up in one Error, so that a user sees them together.

void Diagnostics::add(Fault fault) {
  if (full()) return;
  if (fault.message.size() > kMaxMessageBytes) {
    fault.message.resize(kMaxMessageBytes);
    fault.message += "...";
  }
  list_.push_back(std::move(fault));
}

std::string Diagnostics::text() const {
  std::string out;
  for (const Fault& fault : list_) {
    out += fault.file;
    if (fault.line > 0) out += fmt::format(":{}:{}", fault.line, fault.column);
    out += ": error: " + fault.message + "\n";
    if (!fault.source_line.empty())
      out += fmt::format("  {}\n  {:>{}}\n", fault.source_line, "^", fault.column);
  }
  return out + fmt::format("{}{} error{}; nothing was started", full() ? "at least " : "",
                           list_.size(), list_.size() == 1 ? "" : "s");
}

void Diagnostics::throw_if_any(std::string_view area) const {
  if (!empty()) throw Error(ExitCode::kConfig, area, "the configuration has faults\n" + text());
}

}  // namespace lockstep
