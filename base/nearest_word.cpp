#include "base/nearest_word.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kMaxComparedBytes = 100;

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // Below this; all letters of a word are no typo.
  size_t best_distance = std::min(std::max<size_t>(2, word.size() / 3) + 1, word.size());
  if (word.size() > kMaxComparedBytes) return best;  // no typo of anything
  for (const std::string& candidate : candidates) {
    if (candidate.size() >= word.size() + best_distance ||
        word.size() >= candidate.size() + best_distance)
      continue;  // as many edits as the lengths differ by
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t replace = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replace}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_word(word, candidates);
  return near.empty() ? "" : " (did you mean '" + near + "'?)";
}

}  // namespace lockstep
