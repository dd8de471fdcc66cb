#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/mark.h>

#include "base/diagnostics.h"

/// Checks of a YAML text before and during parsing.
namespace lockstep {

/// Checker of a YAML text during parsing, before a tree is built. It finds faults that the parser
/// accepts, and stops texts whose tree would be too large.
///
/// A node is a scalar, a list or a map; keys count too. An alias counts as everything that it
/// stands for. So a few lines of nested aliases cannot unfold into millions of nodes.
///
///   YamlCheck check([&](const YAML::Mark& mark, std::string message) { ... });
///   while (parser.HandleNextDocument(check)) {}
class YamlCheck final : public YAML::EventHandler {
 public:
  static constexpr int64_t kMaxNodes = 100'000;
  static constexpr int64_t kMaxDepth = 64;

  /// Exception thrown out of the parser for a text that must not be read further.
  struct Stop {
    YAML::Mark mark;
    std::string message;
  };

  /// `report` is called for each fault after which reading can continue. These are duplicate keys,
  /// merge keys, and keys that are not plain words.
  explicit YamlCheck(std::function<void(const YAML::Mark&, std::string)> report)
      : report_(std::move(report)) {}

  int64_t num_documents() const { return num_documents_; }

  void OnDocumentStart(const YAML::Mark& mark) override;
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override;
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override;
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override;
  void OnMapEnd() override { close(); }

 private:
  /// Size of a node after unfolding its aliases.
  struct Extent {
    int64_t num_nodes = 1;
    int64_t height = 0;    // levels below it
    bool is_open = false;  // its end has not been read
  };
  /// List or map whose end has not been read.
  struct Level {
    bool is_map = false;
    bool key_is_next = false;
    YAML::anchor_t anchor = 0;
    Extent extent;
    std::set<std::string> keys;
  };

  void add(const YAML::Mark& mark, const Extent& extent);
  void note_key(const YAML::Mark& mark, const std::string* text);
  void open(const YAML::Mark& mark, YAML::anchor_t anchor, bool is_map);
  void close();

  std::function<void(const YAML::Mark&, std::string)> report_;
  std::vector<Level> levels_;
  std::map<YAML::anchor_t, Extent> anchored_;
  int64_t num_documents_ = 0;
  int64_t num_nodes_ = 0;
};

inline constexpr int64_t kMaxYamlBytes = 1 << 20;

/// True if the text has at most `max_bytes` and is valid UTF-8. Otherwise adds a fault with `name`.
bool text_is_sound(const std::string& name, const std::string& text, int64_t max_bytes,
                   Diagnostics* faults);

/// Longest line that messages show, in bytes.
inline constexpr size_t kMaxShownBytes = 160;
/// Returns a line of `text`, counted from 0, without its end; empty if there is none.
std::string_view line_of(std::string_view text, int64_t line);

/// Parses `yaml` and checks its events with YamlCheck. True if it has a document. Throws
/// YamlCheck::Stop and the parser's exceptions.
bool check_events(const std::string& yaml,
                  const std::function<void(const YAML::Mark&, std::string)>& report);

/// Returns the parser's message, or a better one for this source line.
std::string parser_hint(std::string_view line, const std::string& message);

}  // namespace lockstep
