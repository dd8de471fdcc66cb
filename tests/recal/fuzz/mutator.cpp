#include "mutator.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace lockstep::fuzz {
namespace {

struct Part {
  size_t begin = 0;
  size_t size = 0;
};

/// Runs of letters and digits, and single other characters that are not blank.
std::vector<Part> tokens_of(const std::string& text) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  std::vector<Part> tokens;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    while (is_word(text[i]) && end < text.size() && is_word(text[end])) ++end;
    if (text[i] != ' ' && text[i] != '\n') tokens.push_back({i, end - i});
    i = end;
  }
  return tokens;
}

std::vector<Part> lines_of(const std::string& text) {
  std::vector<Part> lines;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find('\n', i), text.size() - 1) + 1;
    lines.push_back({i, end - i});
    i = end;
  }
  return lines;
}

const std::vector<std::string>& odd_tokens() {
  static const std::vector<std::string> tokens{"",
                                               "~",
                                               "{}",
                                               "[]",
                                               "''",
                                               "\"\\x00\"",
                                               "!!binary",
                                               "!",
                                               "!X",
                                               "<<",
                                               "*x",
                                               "&x",
                                               "&x *x",
                                               "|",
                                               ">",
                                               "-",
                                               "?",
                                               ":",
                                               "---",
                                               "...",
                                               "%YAML 1.2",
                                               "#",
                                               "@",
                                               "`",
                                               "\t",
                                               "\r\n",
                                               "-1",
                                               "0",
                                               ".nan",
                                               ".inf",
                                               "1e999",
                                               "-0.0",
                                               "true",
                                               "__ALL__",
                                               "__ALL_PRUNABLE__",
                                               "re:",
                                               "re:.*",
                                               "re:(",
                                               "eval(",
                                               "eval()",
                                               "eval(x)",
                                               "eval(1/0)",
                                               "eval(1/3)",
                                               "[1, 4]",
                                               "4:8",
                                               "block4",
                                               "modifiers",
                                               "version",
                                               "start_epoch",
                                               "end_epoch",
                                               "start_step",
                                               "update_frequency",
                                               "lr_kwargs",
                                               "params",
                                               "EpochRangeModifier",
                                               "GradualKSModifier",
                                               "LearningRateFunctionModifier",
                                               "QuantizationModifier",
                                               "TrainableParamsModifier",
                                               "SetParamModifier",
                                               "\xEF\xBB\xBF",
                                               "\xff"};
  return tokens;
}

const std::vector<std::string>& odd_numbers() {
  static const std::vector<std::string> numbers{"0",
                                                "-1",
                                                "-1.0",
                                                "1e-6",
                                                "0.000001",
                                                "1e6",
                                                "1000000",
                                                "999999.999999",
                                                "1e15",
                                                "999999999999999",
                                                "9223372036854775807",
                                                "9223372036854775808",
                                                "-9223372036854775808",
                                                "1e308",
                                                "1e-308",
                                                "4.9e-324",
                                                "0.9999999999999999",
                                                "0.1000000000000000055",
                                                "1e18",
                                                "1e-18",
                                                "123456789012345678",
                                                "1234567890123456789012345678901234567890",
                                                "00",
                                                "1_000",
                                                "0x7f",
                                                "1."};
  return numbers;
}

const std::vector<std::string>& odd_patterns() {
  static const std::vector<std::string> patterns{
      "(a+)+$",    "(a*)*(a*)*b", "((.*)*)*x",  "(x{100}){100}", "(.{1,30}){1,30}",
      "\\pL{900}", "[^\\n]*$",    "(?i)BLOCKS", "(?:",           "\\C",
      "\\Q",       "a|b|c|d",     "^$",         "\\b+",          "[[:word:]]{1,500}",
      "(|a)*",     "\\1"};
  return patterns;
}

std::string repeated(const std::string& text, uint64_t times) {
  std::string out;
  for (uint64_t i = 0; i < times; ++i) out += text;
  return out;
}

}  // namespace

std::string Mutator::recipe_of_case(uint64_t index) {
  random_.seed(seed_ * 1'000'003 + index);
  std::string text = any_of(recipes_);
  const uint64_t num_changes = 1 + below(chance(60) ? 1 : chance(80) ? 4 : 12);
  for (uint64_t i = 0; i < num_changes; ++i) mutate(&text);
  text.shrink_to_fit();  // so that reading beyond its end leaves its memory
  return text;
}

void Mutator::mutate(std::string* text) {
  using Change = void (Mutator::*)(std::string*);
  // Those that keep most of a recipe whole stand several times: what loads goes deeper.
  static constexpr std::array kChanges = {
      &Mutator::flip_bytes,    &Mutator::insert_bytes,   &Mutator::erase_part,
      &Mutator::repeat_part,   &Mutator::truncate,       &Mutator::swap_lines,
      &Mutator::repeat_line,   &Mutator::indent_line,    &Mutator::swap_tokens,
      &Mutator::swap_tokens,   &Mutator::replace_token,  &Mutator::replace_token,
      &Mutator::change_number, &Mutator::change_number,  &Mutator::change_number,
      &Mutator::nest,          &Mutator::add_alias_bomb, &Mutator::add_eval_bomb,
      &Mutator::add_regex,     &Mutator::splice,         &Mutator::wrap_in_markdown};
  static constexpr std::array kLargeChanges = {&Mutator::fill, &Mutator::add_entries};
  const Change change = below(200) == 0 ? kLargeChanges[below(kLargeChanges.size())]
                                        : kChanges[below(kChanges.size())];
  (this->*change)(text);
}

void Mutator::flip_bytes(std::string* text) {
  if (text->empty()) return;
  for (uint64_t i = 1 + below(4); i > 0; --i)
    (*text)[below(text->size())] ^= static_cast<char>(1 << below(8));
}

void Mutator::insert_bytes(std::string* text) {
  std::string bytes;
  for (uint64_t i = 1 + below(8); i > 0; --i) bytes.push_back(static_cast<char>(below(256)));
  text->insert(place_in(*text), bytes);
}

void Mutator::erase_part(std::string* text) { text->erase(place_in(*text), below(40)); }

void Mutator::repeat_part(std::string* text) {
  const std::string part = text->substr(place_in(*text), below(60));
  text->insert(place_in(*text), repeated(part, 1 + below(chance(10) ? 3000 : 3)));
}

void Mutator::truncate(std::string* text) { text->resize(place_in(*text)); }

void Mutator::swap_lines(std::string* text) {
  const std::vector<Part> lines = lines_of(*text);
  if (lines.size() < 2) return;
  const Part from = lines[below(lines.size())];
  const std::string line = text->substr(from.begin, from.size);
  text->erase(from.begin, from.size);
  const std::vector<Part> rest = lines_of(*text);
  text->insert(rest.empty() ? 0 : rest[below(rest.size())].begin, line);
}

void Mutator::repeat_line(std::string* text) {
  const std::vector<Part> lines = lines_of(*text);
  if (lines.empty()) return;
  const Part line = lines[below(lines.size())];
  text->insert(line.begin,
               repeated(text->substr(line.begin, line.size), 1 + below(chance(10) ? 2000 : 3)));
}

void Mutator::indent_line(std::string* text) {
  const std::vector<Part> lines = lines_of(*text);
  if (lines.empty()) return;
  text->insert(lines[below(lines.size())].begin, std::string(1 + below(4), ' '));
}

void Mutator::swap_tokens(std::string* text) {
  const std::vector<Part> tokens = tokens_of(*text);
  if (tokens.empty()) return;
  const Part from = tokens[below(tokens.size())];
  const Part to = tokens[below(tokens.size())];
  text->replace(to.begin, to.size, text->substr(from.begin, from.size));
}

void Mutator::replace_token(std::string* text) {
  const std::vector<Part> tokens = tokens_of(*text);
  if (tokens.empty()) return;
  const Part token = tokens[below(tokens.size())];
  text->replace(token.begin, token.size, any_of(odd_tokens()));
}

void Mutator::change_number(std::string* text) {
  std::vector<Part> numbers = tokens_of(*text);
  std::erase_if(numbers, [&](const Part& token) {
    return std::isdigit(static_cast<unsigned char>((*text)[token.begin])) == 0;
  });
  if (numbers.empty()) return;
  const Part number = numbers[below(numbers.size())];
  const std::string chosen =
      chance(50) ? any_of(odd_numbers()) : fmt::format("{}.{}", below(300), below(1000));
  text->replace(number.begin, number.size, chosen);
}

void Mutator::nest(std::string* text) {
  static const std::vector<std::string> opens{"[",     "{a: ", "- ",   "? ",
                                              "a:\n ", "!x [", "&n [", "("};
  static const std::array<uint64_t, 6> depths{3, 40, 70, 400, 2'000, 20'000};
  text->insert(place_in(*text), repeated(any_of(opens), 1 + below(depths[below(depths.size())])));
}

void Mutator::add_alias_bomb(std::string* text) {
  const uint64_t width = 1 + below(12);
  std::string bomb = fmt::format("b0: &b0 [{}]\n", repeated("x, ", width));
  const uint64_t depth = 1 + below(70);
  for (uint64_t i = 1; i < depth; ++i)
    bomb += fmt::format("b{}: &b{} [{}]\n", i, i, repeated(fmt::format("*b{}, ", i - 1), width));
  const uint64_t used = below(depth + 2);  // one of the last is not there
  const std::vector<Part> lines = lines_of(*text);
  if (chance(50)) *text += fmt::format("x_modifiers: *b{}\n", used);
  text->insert(lines.empty() ? 0 : lines[below(lines.size())].begin, bomb);
}

void Mutator::add_eval_bomb(std::string* text) {
  const std::vector<std::string> sums{"v{0} * v{0}",     "v{0} + v{0}", "1 / (v{0} + 3)",
                                      "v{0} / 7 - v{0}", "-v{0}",       "v{0}"};
  const std::string& sum = any_of(sums);
  const uint64_t length = 1 + below(chance(10) ? 2000 : 70);
  std::string bomb = "v0: " + any_of(odd_numbers()) + "\n";
  for (uint64_t i = 1; i < length; ++i)
    bomb += fmt::format("v{}: eval({})\n", i, fmt::format(fmt::runtime(sum), i - 1));
  if (chance(20)) bomb += fmt::format("w: eval({}1{})\n", repeated("(", below(500)), ")");
  if (chance(20)) bomb += fmt::format("w: eval(1{})\n", repeated(" + 1", below(3000)));
  text->insert(0, bomb);
  const std::vector<Part> tokens = tokens_of(*text);
  const Part token = tokens[below(tokens.size())];
  text->replace(token.begin, token.size, fmt::format("eval(v{})", below(length + 1)));
}

void Mutator::add_regex(std::string* text) {
  std::string pattern = any_of(odd_patterns());
  if (chance(20)) pattern = repeated(pattern, 1 + below(2000));
  const std::string entry = fmt::format("params: ['re:{}']", pattern);
  const size_t params = text->find("params:");
  if (params == std::string::npos) return;
  const size_t end = std::min(text->find('\n', params), text->size());
  text->replace(params, end - params, chance(80) ? entry : "params: re:" + pattern);
}

/// Up to what the caps let pass, and beyond. Seldom: such a text takes long.
void Mutator::fill(std::string* text) {
  static const std::vector<std::string> parts{"a, ",
                                              "{a: b}, ",
                                              "[[a]], ",
                                              "'re:a.*', ",
                                              "\n- a",
                                              "\n- a: b",
                                              "\n- - - a",
                                              "\n- !ConstantKSModifier {params: [a, b]}",
                                              "\n- !SetLearningRateModifier {}",
                                              "\n- eval(v)",
                                              "x",
                                              "x x\n ",
                                              "\n"};
  const std::string part = any_of(parts);
  const uint64_t most = chance(30) ? 1'100'000 / part.size() : 2'000;
  const std::string name = chance(50) ? "x_modifiers" : "filler";
  *text = fmt::format("{}{}: {}{}\n", *text, name, part.front() == '\n' ? "" : "[",
                      repeated(part, 1 + below(most)));
  if (part.front() != '\n') *text += "]\n";
}

/// Adds many top-level entries.
void Mutator::add_entries(std::string* text) {
  static const std::vector<std::string> entries{"e{}: 1\n",         "e{}_modifiers: []\n",
                                                "e{}_modifiers:\n", "e{}: eval(e1)\n",
                                                "e{}: eval(f)\n",   "e{}: {{}}\n"};
  const std::string& entry = any_of(entries);
  const uint64_t num_entries = 1 + below(chance(30) ? 40'000 : 1'000);
  for (uint64_t i = 0; i < num_entries; ++i) *text += fmt::format(fmt::runtime(entry), i);
}

void Mutator::splice(std::string* text) {
  const std::string& other = any_of(recipes_);
  const std::vector<Part> lines = lines_of(other);
  const Part from = lines[below(lines.size())];
  text->insert(place_in(*text), other.substr(from.begin, 1 + below(400)));
}

void Mutator::wrap_in_markdown(std::string* text) {
  static const std::vector<std::string> before{"", "<!-- c -->\n", "<!--\n", "\n\n",
                                               "<!-- a --><!-- b\n-->\n"};
  static const std::vector<std::string> after{"---\n# Title\n", "---", "---\na: 1\n", "",
                                              "--- x\n"};
  *text = any_of(before) + "---\n" + *text + any_of(after);
}

}  // namespace lockstep::fuzz
