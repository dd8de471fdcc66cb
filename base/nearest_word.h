#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Returns the candidate nearest to `word` by edit distance; empty if none is near enough to be a
/// likely typo.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
/// Returns " (did you mean 'x'?)" or an empty text.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// Returns at most `count` candidates by edit distance to `word`, nearest first, however far they
/// are. Of equal distances the earlier candidate comes first.
std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& candidates,
                                       size_t count = 5);

}  // namespace lockstep
