#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The candidate nearest to `word` by edit distance, or empty if none is near enough to be a likely
/// typo.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
/// " (did you mean 'x'?)" or empty.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// The candidates by edit distance to `word`, nearest first, `count` at most, however far they are;
/// of equally near ones the first.
std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& candidates,
                                       size_t count = 5);

}  // namespace lockstep
