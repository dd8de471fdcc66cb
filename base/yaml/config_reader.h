#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/exact_numbers.h"
#include "base/yaml/yaml_document.h"

namespace lockstep {

/// One key of the run file, for the reference page.
struct FieldDoc {
  std::string path;                       ///< optimizer.learning_rate
  std::string type;                       ///< number, integer, yes/no, text, list, one of: a, b
  std::string default_text;               ///< as YAML; "required" after require()
  std::string range;                      ///< "> 0", "0 to 1"; empty: any value
  std::string help;                       ///< one sentence, with the unit
  std::vector<std::string> choices = {};  ///< of "one of: ..."
};

/// Range of a number. Bounds that are not set are open.
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
/// Returns the range of a count of at least `low`. It is small enough that sums and products of a
/// few counts stay exact.
inline Range count_from(double low) { return between(low, 1e9); }
/// Returns the range low <= x < high.
inline Range half_open(double low, double high) {
  return {.at_least = low, .more_than = {}, .at_most = {}, .less_than = high};
}

/// Strict reader of one YAML map. Each key is read once, together with its default, range and help.
/// Wrong types, values out of range and unknown keys become faults with their position. If `docs`
/// is given, the same calls list the fields for the reference page.
///
///   ConfigReader in(node, "sync", document, &faults);
///   in.read("bucket_bytes", &options.bucket_bytes, at_least(1), "bytes of one all-reduce");
///   in.done();
///
/// A missing key leaves the variable unchanged, and so does `null` or `~`. A key with an empty
/// value is a fault. A null or undefined node counts as an empty map.
class ConfigReader {
 public:
  ConfigReader(const YAML::Node& map, std::string path, const YamlDocument& document,
               Diagnostics* faults, std::vector<FieldDoc>* docs = nullptr);

  /// True if the key exists with a value other than `null`.
  bool has(std::string_view key) const;
  /// Returns the key's node (undefined if missing or `null`) and marks the key as known.
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
  /// Reads one of the listed words.
  bool read_choice(std::string_view key, std::string* value,
                   const std::vector<std::string>& choices, std::string_view help);
  /// True if the value is `off` or false in place of a section: the feature is disabled. Marks the
  /// key as known then.
  bool is_off(std::string_view key);
  /// Returns the reader of a nested map. A value that is not a map becomes a fault.
  ConfigReader section(std::string_view key);

  /// Adds a fault if the key is missing. Call it before reading the key, so that the reference page
  /// says "required".
  void require(std::string_view key);
  /// Adds a fault at this key's value, or at the map if the key is missing.
  void fault(std::string_view key, std::string message);
  /// Adds a fault that begins with the key's path: 'sync.bucket_bytes' must be ...
  void refuse(std::string_view key, const std::string& rest) {
    fault(key, "'" + path_of(key) + "' " + rest);
  }
  /// Adds a fault at a node.
  void fault_at(const YAML::Node& node, std::string message) {
    faults_->add(document_.fault_at(node, std::move(message)));
  }
  /// Adds a fault with the nearest known key for every unknown key. Call it last.
  void done();

  /// True if the reader only lists its fields: each section is then read as if it existed.
  bool lists_fields() const { return docs_ != nullptr; }
  const std::string& path() const { return path_; }
  const YAML::Node& node() const { return map_; }
  const YamlDocument& document() const { return document_; }
  Diagnostics* faults() const { return faults_; }

 private:
  /// Returns the value's node if the key exists; records key and documentation.
  std::optional<YAML::Node> find(std::string_view key, std::string_view type,
                                 std::string default_text, std::string range,
                                 std::string_view help);
  std::string path_of(std::string_view key) const;
  /// Adds a fault at a key's value or a part of it. The value of an alias is elsewhere, so the
  /// message also names the line where the alias is used.
  void refuse(const YAML::Node& node, std::string_view key, std::string message);
  void wrong_type(const YAML::Node& node, std::string_view key, std::string_view wanted);
  /// Parses a number (T: double, int64_t) in a range; adds a fault and returns nullopt otherwise.
  template <typename T>
  std::optional<T> number(const YAML::Node& node, std::string_view key, const Range& range);
  template <typename T, typename Value>
  bool read_number(std::string_view key, Value* value, std::string default_text, const Range& range,
                   std::string_view help);

  YAML::Node map_;
  std::string path_;
  const YamlDocument& document_;
  Diagnostics* faults_;
  std::vector<FieldDoc>* docs_;
  std::vector<std::string> known_, required_;
};

/// Parses a number in Lockstep's form: decimal digits, optional sign, point and exponent, finite.
/// Examples: 2.5, .5, 5., 1e-3. Octal, hexadecimal, `.inf`, underscores and percent signs are not
/// numbers. Returns nullopt for any other text.
std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);
/// Parses a truth value of YAML 1.1 in any case: true, yes, on; false, no, off. Returns nullopt for
/// any other text ("y" and "1" are texts).
std::optional<bool> parse_bool(std::string_view text);

}  // namespace lockstep
