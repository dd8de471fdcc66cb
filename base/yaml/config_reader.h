#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/decimal.h"
#include "base/yaml/yaml_document.h"

namespace lockstep {

/// One key of the run file, for the reference page.
struct FieldDoc {
  std::string path;                       ///< optimizer.learning_rate
  std::string type;                       ///< number, integer, yes/no, text, list, one of: a, b
  std::string default_text;               ///< as YAML; "required" where require() asks for it
  std::string range;                      ///< "> 0", "0 to 1"; empty: any
  std::string help;                       ///< one sentence, with the unit
  std::vector<std::string> choices = {};  ///< of "one of: ..."
};

/// Range of a number. Unset bounds are open.
struct Range {
  std::optional<double> at_least, more_than, at_most, less_than;
  bool holds(double value) const;
  std::string text() const;
};
inline Range at_least(double bound) {
  return {.at_least = bound, .more_than = {}, .at_most = {}, .less_than = {}};
}
inline Range more_than(double bound) {
  return {.at_least = {}, .more_than = bound, .at_most = {}, .less_than = {}};
}
inline Range between(double low, double high) {
  return {.at_least = low, .more_than = {}, .at_most = high, .less_than = {}};
}
/// A count, of at least `low`, small enough that sums and products of a few stay exact.
inline Range count_from(double low) { return between(low, 1e9); }
/// low <= x < high
inline Range half_open(double low, double high) {
  return {.at_least = low, .more_than = {}, .at_most = {}, .less_than = high};
}

/// Strict reader of one YAML map. Each key is read once, with its default, range and help beside
/// it; wrong types, values out of range and unknown keys become faults with their place. The same
/// calls list the fields for the reference page when `docs` is given.
///
///   ConfigReader in(node, "sync", document, &faults);
///   in.read("bucket_bytes", &options.bucket_bytes, at_least(1), "bytes of gradients that travel
///   together"); in.done();
///
/// An absent key keeps what the variable holds, and so does one at which `null` or `~` is written;
/// a key with nothing behind it is a fault. A null or undefined node reads as an empty map.
class ConfigReader {
 public:
  ConfigReader(const YAML::Node& map, std::string path, const YamlDocument& document,
               Diagnostics* faults, std::vector<FieldDoc>* docs = nullptr);

  /// Whether the key is there with a value other than `null`.
  bool has(std::string_view key) const;
  /// The key's node (undefined if absent or `null`); it counts as known from now on.
  YAML::Node take(std::string_view key, std::string_view type = "", std::string_view help = "");

  bool read(std::string_view key, std::string* value, std::string_view help);
  bool read(std::string_view key, bool* value, std::string_view help);
  bool read(std::string_view key, double* value, Range range, std::string_view help);
  bool read(std::string_view key, int64_t* value, Range range, std::string_view help);
  bool read(std::string_view key, std::optional<double>* value, Range range, std::string_view help);
  bool read(std::string_view key, std::optional<int64_t>* value, Range range,
            std::string_view help);
  bool read(std::string_view key, Decimal* value, Range range, std::string_view help);
  bool read(std::string_view key, std::vector<int64_t>* value, Range range_of_each,
            std::string_view help);
  bool read(std::string_view key, std::vector<std::string>* value, std::string_view help);
  /// One of the listed words.
  bool read_choice(std::string_view key, std::string* value,
                   const std::vector<std::string>& choices, std::string_view help);
  /// Whether `off` or false stands where section() expects a map: what it describes is not wanted.
  /// The key counts as known from now on.
  bool is_off(std::string_view key);
  /// A nested map, to be read by its owner; a fault if it is there but no map.
  ConfigReader section(std::string_view key);

  /// A fault unless the key is there. Call before reading it: the reference then says "required".
  void require(std::string_view key);
  /// A fault at this key's value (or at the map if the key is absent).
  void fault(std::string_view key, std::string message);
  /// Every key that nobody asked for becomes a fault with the nearest known key. Call last.
  void done();

  /// Whether it is read to list its fields: each section is then asked for as if it were there.
  bool lists_fields() const { return docs_ != nullptr; }
  const std::string& path() const { return path_; }
  const YAML::Node& node() const { return map_; }
  const YamlDocument& document() const { return document_; }
  Diagnostics* faults() const { return faults_; }

 private:
  /// The value's node if the key is there; notes key and documentation.
  std::optional<YAML::Node> find(std::string_view key, std::string_view type,
                                 std::string default_text, std::string range,
                                 std::string_view help);
  std::string path_of(std::string_view key) const;
  /// A fault at a key's value, or at a part of it. What an alias stands for is elsewhere: the
  /// message then names the line of its use.
  void refuse(const YAML::Node& node, std::string_view key, std::string message);
  void wrong_type(const YAML::Node& node, std::string_view key, std::string_view wanted);
  std::optional<double> number(const YAML::Node& node, std::string_view key, const Range& range);
  std::optional<int64_t> integer(const YAML::Node& node, std::string_view key, const Range& range);

  YAML::Node map_;
  std::string path_;
  const YamlDocument& document_;
  Diagnostics* faults_;
  std::vector<FieldDoc>* docs_;
  std::vector<std::string> known_, required_;
};

/// Numbers as Lockstep reads them (decimal digits, optional sign, point, exponent; finite): 2.5,
/// .5, 5., 1e-3. Octal, hexadecimal, `.inf`, underscores and percent signs are not numbers. Nothing
/// if the text is not of that form.
std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);
/// A truth value of YAML 1.1 in any case: true, yes, on; false, no, off. Nothing else ("y", "1" are
/// texts).
std::optional<bool> parse_bool(std::string_view text);

}  // namespace lockstep
