#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace lockstep::fuzz {

/// Makes broken and hostile recipes of good ones. What case i of a seed is depends on nothing else.
class Mutator {
 public:
  /// `recipes` must hold one at least.
  Mutator(std::vector<std::string> recipes, uint64_t seed)
      : recipes_(std::move(recipes)), seed_(seed) {}

  std::string recipe_of_case(uint64_t index);

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  bool chance(int percent) { return below(100) < static_cast<uint64_t>(percent); }
  size_t place_in(const std::string& text) { return text.empty() ? 0 : below(text.size() + 1); }
  const std::string& any_of(const std::vector<std::string>& choices) {
    return choices[below(choices.size())];
  }

  void mutate(std::string* text);
  void flip_bytes(std::string* text);
  void insert_bytes(std::string* text);
  void erase_part(std::string* text);
  void repeat_part(std::string* text);
  void truncate(std::string* text);
  void swap_lines(std::string* text);
  void repeat_line(std::string* text);
  void indent_line(std::string* text);
  void swap_tokens(std::string* text);
  void replace_token(std::string* text);
  void change_number(std::string* text);
  void nest(std::string* text);
  void add_alias_bomb(std::string* text);
  void add_eval_bomb(std::string* text);
  void add_regex(std::string* text);
  void fill(std::string* text);
  void add_entries(std::string* text);
  void splice(std::string* text);
  void wrap_in_markdown(std::string* text);

  std::vector<std::string> recipes_;
  uint64_t seed_;
  std::mt19937_64 random_;
};

}  // namespace lockstep::fuzz
