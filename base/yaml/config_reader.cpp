// Every read() first calls find(), which marks the key as known and documents it. done() then
// reports the unknown keys.
#include "base/yaml/config_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace lockstep {
namespace {

bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }

std::string number_text(double value) { return fmt::format("{}", value); }

/// Returns an optional default for the reference page.
template <typename T>
std::string optional_text(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "none";
}

/// Returns a hint for an unknown key: the nearest known key, or all of them.
std::string near_or_all(const std::string& key, const std::vector<std::string>& known) {
  const std::string near = did_you_mean(key, known);
  if (!near.empty() || known.empty()) return near;
  std::vector<std::string> each;
  for (const std::string& name : known)
    if (std::find(each.begin(), each.end(), name) == each.end()) each.push_back(name);
  return fmt::format("; available: {}", fmt::join(each, ", "));
}

}  // namespace

bool Range::holds(double value) const {
  return (!at_least || value >= *at_least) && (!more_than || value > *more_than) &&
         (!at_most || value <= *at_most) && (!less_than || value < *less_than);
}

std::string Range::text() const {
  std::vector<std::string> parts;
  if (at_least) parts.push_back(">= " + number_text(*at_least));
  if (more_than) parts.push_back("> " + number_text(*more_than));
  if (at_most) parts.push_back("<= " + number_text(*at_most));
  if (less_than) parts.push_back("< " + number_text(*less_than));
  return fmt::format("{}", fmt::join(parts, " and "));
}

std::optional<double> parse_number(std::string_view text) {
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  const std::string_view unsigned_text = text.substr(has_sign ? 1 : 0);
  if (text.starts_with('+')) text = unsigned_text;                    // from_chars accepts no plus
  const size_t first_digit = unsigned_text.starts_with('.') ? 1 : 0;  // .5, but not .inf
  if (unsigned_text.size() <= first_digit || !is_decimal_digit(unsigned_text[first_digit]))
    return std::nullopt;
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const std::string_view digits = text.substr(text.front() == '-' ? 1 : 0);
  if (digits.size() > 1 && digits.front() == '0')
    return std::nullopt;  // 012 is octal in other languages: ambiguous
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "no" || lower == "off") return false;
  return std::nullopt;
}

ConfigReader::ConfigReader(const YAML::Node& map, std::string path, const YamlDocument& document,
                           Diagnostics* faults, std::vector<FieldDoc>* docs)
    : map_(map), path_(std::move(path)), document_(document), faults_(faults), docs_(docs) {
  if (map_.IsDefined() && !map_.IsNull() && !map_.IsMap()) {
    faults_->add(document_.fault_at(
        map_, (path_.empty() ? "the file" : "'" + path_ + "'") + " must be a map of keys"));
    map_.reset();
  }
}

std::string ConfigReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

bool ConfigReader::has(std::string_view key) const {
  if (!map_.IsDefined() || !map_.IsMap()) return false;
  const YAML::Node& map = map_;  // const, so that [] adds no key
  const YAML::Node node = map[std::string(key)];
  return node.IsDefined() && !document_.says_null(node);
}

YAML::Node ConfigReader::take(std::string_view key, std::string_view type, std::string_view help) {
  const std::optional<YAML::Node> node = find(key, type, "none", "", help);
  return node ? *node : YAML::Node(YAML::NodeType::Undefined);
}

std::optional<YAML::Node> ConfigReader::find(std::string_view key, std::string_view type,
                                             std::string default_text, std::string range,
                                             std::string_view help) {
  known_.emplace_back(key);
  // A required key has no default to show.
  if (std::find(required_.begin(), required_.end(), key) != required_.end())
    default_text = "required";
  if (docs_ != nullptr && !help.empty())
    docs_->push_back({path_of(key), std::string(type), std::move(default_text), std::move(range),
                      std::string(help)});
  if (!has(key)) return std::nullopt;
  return map_[std::string(key)];
}

/// Adds a fault that names the expected and the actual type.
void ConfigReader::wrong_type(const YAML::Node& node, std::string_view key,
                              std::string_view wanted) {
  const std::string got = node.IsScalar()     ? "'" + node.Scalar().substr(0, 40) + "'"
                          : node.IsMap()      ? "a map"
                          : node.IsSequence() ? "a list"
                                              : "nothing";
  refuse(node, key, fmt::format("'{}' must be {}, not {}", path_of(key), wanted, got));
}

void ConfigReader::refuse(const YAML::Node& node, std::string_view key, std::string message) {
  if (!node.Mark().is_null() && !node.is(map_))  // the map itself is not a key's value
    for (const auto& pair : map_) {
      if (!pair.first.IsScalar() || pair.first.Scalar() != key) continue;
      // An alias: its text is before the key at which it is used.
      if (pair.first.Mark().pos > node.Mark().pos)
        message +=
            fmt::format(" (used in {} by its alias)", document_.place_text(pair.first.Mark()));
    }
  faults_->add(document_.fault_at(node, std::move(message)));
}

template <typename T>
std::optional<T> ConfigReader::number(const YAML::Node& node, std::string_view key,
                                      const Range& range) {
  std::optional<T> value;
  if constexpr (std::is_same_v<T, int64_t>)
    value = node.IsScalar() ? parse_integer(node.Scalar()) : std::nullopt;
  else
    value = node.IsScalar() ? parse_number(node.Scalar()) : std::nullopt;
  if (!value) {
    wrong_type(node, key,
               std::is_same_v<T, int64_t> ? "a whole number" : "a finite decimal number");
  } else if (!range.holds(static_cast<double>(*value))) {
    refuse(node, key,
           fmt::format("'{}' is {}, it must be {}", path_of(key), node.Scalar(), range.text()));
    return std::nullopt;
  }
  return value;
}

template <typename T, typename Value>
bool ConfigReader::read_number(std::string_view key, Value* value, std::string default_text,
                               const Range& range, std::string_view help) {
  const auto node = find(key, std::is_same_v<T, int64_t> ? "integer" : "number",
                         std::move(default_text), range.text(), help);
  const std::optional<T> parsed = node ? number<T>(*node, key, range) : std::nullopt;
  if (parsed) *value = *parsed;
  return parsed.has_value();
}

bool ConfigReader::read(std::string_view key, std::string* value, std::string_view help) {
  const auto node = find(key, "string", value->empty() ? "none" : *value, "", help);
  if (!node) return false;
  if (!node->IsScalar()) return wrong_type(*node, key, "a string"), false;
  *value = node->Scalar();
  return true;
}

bool ConfigReader::read(std::string_view key, bool* value, std::string_view help) {
  const auto node = find(key, "true or false", *value ? "true" : "false", "", help);
  if (!node) return false;
  const std::optional<bool> parsed = node->IsScalar() ? parse_bool(node->Scalar()) : std::nullopt;
  if (!parsed) return wrong_type(*node, key, "true or false"), false;
  *value = *parsed;
  return true;
}

bool ConfigReader::read(std::string_view key, double* value, Range range, std::string_view help) {
  return read_number<double>(key, value, number_text(*value), range, help);
}

bool ConfigReader::read(std::string_view key, int64_t* value, Range range, std::string_view help) {
  return read_number<int64_t>(key, value, std::to_string(*value), range, help);
}

bool ConfigReader::read(std::string_view key, std::optional<double>* value, Range range,
                        std::string_view help) {
  return read_number<double>(key, value, optional_text(*value), range, help);
}

bool ConfigReader::read(std::string_view key, std::optional<int64_t>* value, Range range,
                        std::string_view help) {
  return read_number<int64_t>(key, value, optional_text(*value), range, help);
}

bool ConfigReader::read(std::string_view key, Decimal* value, Range range, std::string_view help) {
  const auto node = find(key, "number", value->text(), range.text(), help);
  if (!node || !number<double>(*node, key, range)) return false;
  // Decimal has fewer digits than number() accepts.
  const std::optional<Decimal> parsed = Decimal::parse(node->Scalar());
  if (!parsed) return wrong_type(*node, key, "a decimal number of at most 18 digits"), false;
  *value = *parsed;
  return true;
}

bool ConfigReader::read(std::string_view key, std::vector<int64_t>* value, Range range_of_each,
                        std::string_view help) {
  const auto node = find(key, "list of integers", fmt::format("[{}]", fmt::join(*value, ", ")),
                         range_of_each.text(), help);
  if (!node) return false;
  if (!node->IsSequence()) return wrong_type(*node, key, "a list of whole numbers"), false;
  std::vector<int64_t> items;
  for (const YAML::Node& item : *node) {
    const std::optional<int64_t> parsed = number<int64_t>(item, key, range_of_each);
    if (!parsed) return false;
    items.push_back(*parsed);
  }
  *value = std::move(items);
  return true;
}

bool ConfigReader::read(std::string_view key, std::vector<std::string>* value,
                        std::string_view help) {
  const auto node =
      find(key, "list of strings", fmt::format("[{}]", fmt::join(*value, ", ")), "", help);
  if (!node) return false;
  std::vector<std::string> items;
  if (node->IsScalar()) {
    items.push_back(node->Scalar());  // a scalar is a one-element list
  } else if (node->IsSequence()) {
    for (const YAML::Node& item : *node) {
      if (!item.IsScalar()) return wrong_type(item, key, "a list of strings"), false;
      items.push_back(item.Scalar());
    }
  } else {
    return wrong_type(*node, key, "a list of strings"), false;
  }
  *value = std::move(items);
  return true;
}

bool ConfigReader::read_choice(std::string_view key, std::string* value,
                               const std::vector<std::string>& choices, std::string_view help) {
  const std::string list = fmt::format("{}", fmt::join(choices, ", "));
  const auto node = find(key, "one of: " + list, value->empty() ? "required" : *value, "", help);
  if (docs_ != nullptr && !help.empty()) docs_->back().choices = choices;
  if (!node) return false;
  // Not a scalar: the empty text is never a choice.
  const std::string text = node->IsScalar() ? node->Scalar() : "";
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    refuse(*node, key,
           fmt::format("'{}' must be one of {}, not '{}'{}", path_of(key), list, text,
                       did_you_mean(text, choices)));
    return false;
  }
  *value = text;
  return true;
}

bool ConfigReader::is_off(std::string_view key) {
  const YAML::Node node = has(key) ? map_[std::string(key)] : YAML::Node();
  if (!node.IsScalar() || parse_bool(node.Scalar()) != false) return false;
  known_.emplace_back(key);
  return true;
}

ConfigReader ConfigReader::section(std::string_view key) {
  return ConfigReader(take(key), path_of(key), document_, faults_, docs_);
}

void ConfigReader::require(std::string_view key) {
  required_.emplace_back(key);
  if (!has(key)) fault(key, fmt::format("'{}' is required", path_of(key)));
}

void ConfigReader::fault(std::string_view key, std::string message) {
  refuse(has(key) ? map_[std::string(key)] : map_, key, std::move(message));
}

void ConfigReader::done() {
  if (!map_.IsDefined() || !map_.IsMap()) return;
  for (const auto& pair : map_) {
    // Further faults would not be shown.
    if (faults_->full()) return;
    if (!pair.first.IsScalar() || pair.first.Scalar() == "<<")
      continue;  // the document has reported it already
    const std::string& key = pair.first.Scalar();
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string where = path_.empty() ? "" : " in '" + path_ + "'";
    faults_->add(document_.fault_at(
        pair.first, "unknown key '" + key + "'" + where + near_or_all(key, known_)));
  }
}

}  // namespace lockstep
