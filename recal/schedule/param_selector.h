#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/param_info.h"
#include "base/yaml/config_reader.h"
#include "base/yaml/yaml_document.h"

namespace re2 {
class RE2;
}

/// Selection of parameters and parameter groups by a modifier: names, patterns, group numbers.
namespace lockstep::recal {

/// Entry of `params` or `submodules`: a name, dotted or slashed, or `re:REGEX`.
///
/// A pattern matches from the start of a name in either spelling; matching a prefix is enough. RE2
/// runs it, in time linear in the name's length. RE2 has no look-ahead, but two idioms for "all
/// names that do not contain X" are supported: re:^((?!X).)*$ and re:^(?!.*X).*$ (also without ^,
/// and with (?: ). Cheap to copy.
class NamePattern {
 public:
  static constexpr size_t kMaxBytes = 1000;

  /// Parses the text. Sets *error if it is not a valid pattern; else *error stays empty.
  NamePattern(std::string text, std::string* error);

  /// Text as written.
  const std::string& text() const { return text_; }
  bool is_regex() const { return regex_ != nullptr; }
  /// True for the idioms that select all names except those that contain a match.
  bool excludes() const { return excludes_; }
  /// True if the pattern matches the name, or equals it. `name` is dotted.
  bool names(const std::string& name) const;
  /// True if the text names a module that contains `name`: blocks for blocks.0.conv.
  bool names_above(const std::string& name) const;
  /// Name with dots; for a pattern its text.
  const std::string& dotted() const { return dotted_; }

 private:
  std::string text_;
  std::string dotted_;
  std::shared_ptr<const re2::RE2> regex_;  // null for a plain name
  bool excludes_ = false;                  // selects the names in which regex_ is not found
};

inline constexpr int kAllGroups = -1;
/// Text for messages: " of parameter group 1", or "" for all groups.
std::string of_group(int group);

/// Parameter groups of the optimizer that a modifier changes (`param_groups`).
struct ParamGroups {
  std::vector<int> numbers;  ///< ascending, each once; empty: all

  bool all() const { return numbers.empty(); }
  /// Returns the first number that is not a group of a run (base/tensors/param_info.h), or -1.
  int first_unknown() const;
  /// True if the list contains every group of a run and no other.
  bool names_each_known() const;
  /// Text for messages: " of parameter groups 0, 1", or "" for all groups.
  std::string text() const;
};

/// Text for messages: "0 (weights, which decay) and 1 (the rest: biases, normalisation)".
std::string known_param_groups();

/// Properties of a parameter that a timeline needs.
struct ParamInfo {
  std::string name;  ///< dotted: blocks.0.conv.weight
  bool prunable = false;
  int64_t num_weights = 0;
  std::vector<int64_t> sizes = {};  ///< [outputs, inputs, ...]; empty: unknown
};

/// Value of a modifier's `params` or `submodules` key: the parameters or layers it works on.
///
/// `__ALL__` selects everything, `__ALL_PRUNABLE__` every prunable parameter. Otherwise the value
/// is a list (a scalar is a list of one) of
///   name      of a layer or a parameter, dotted or slashed
///   re:REGEX  matches from the start of the full parameter name or of the layer name, in either
///             spelling; RE2 syntax, and two idioms for all names without X (NamePattern)
///
/// The resolve functions return indexes, ascending and unique. An entry that selects nothing goes
/// to `unmatched`, with its place and the nearest names. The caller makes it a fault, or a warning
/// with `params_strict: false`. `frozen`: names of parameters that the network's code froze, which
/// are not among `params`; the message for such an entry says so.
class ParamSelector {
 public:
  /// Reads the required key; wrong forms become faults. If key is `params`, also accepts `targets`,
  /// as in newer SparseML recipes.
  bool read(ConfigReader* in, std::string_view key);
  /// Reads the value from a node that belongs to the key.
  bool read_node(ConfigReader* in, std::string_view key, const YAML::Node& node);

  /// Selected prunable parameters. A layer's name selects its weight.
  std::vector<int64_t> resolve_prunable(const std::vector<ParamInfo>& params,
                                        Diagnostics* unmatched,
                                        const std::vector<std::string>& frozen = {}) const;
  /// Selected parameters of any kind. A layer's name selects all of its parameters.
  std::vector<int64_t> resolve_any(const std::vector<ParamInfo>& params, Diagnostics* unmatched,
                                   const std::vector<std::string>& frozen = {}) const;
  /// Selected layers. A name selects the layer and all layers below it (blocks: blocks.0.conv).
  std::vector<int64_t> resolve_layers(const std::vector<LayerInfo>& layers,
                                      Diagnostics* unmatched) const;

  /// True for __ALL__ and __ALL_PRUNABLE__.
  bool means_all() const { return all_ != All::kNo; }
  /// Text as written: __ALL__, or [a, re:b].
  std::string text() const;

 private:
  enum class All { kNo, kEverything, kPrunable };
  struct Entry {
    NamePattern pattern;
    SourceLocation location;
  };

  bool read_list(ConfigReader* in, std::string_view key, const YAML::Node& list);
  bool add(ConfigReader* in, std::string_view key, const YAML::Node& node);
  /// Returns the candidate indexes below n that a word for all or some entry selects.
  std::vector<int64_t> select(
      size_t n, const std::function<bool(size_t)>& is_candidate,
      const std::function<bool(const NamePattern&, size_t)>& is_meant,
      const std::function<std::string(const NamePattern&)>& no_match_message,
      Diagnostics* unmatched) const;

  All all_ = All::kNo;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::recal
