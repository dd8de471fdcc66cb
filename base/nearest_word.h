#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The candidate nearest to `word` by edit distance, or empty if none is near enough to be a likely
/// typo.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
/// " (did you mean 'x'?)" or empty.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace lockstep
