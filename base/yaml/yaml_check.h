#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/mark.h>

namespace lockstep {

/// Looks at a YAML text while it is parsed, before any tree is built: finds what the parser lets
/// pass, and stops texts whose tree would be too large.
///
/// A node is a scalar, a list or a map; keys count. An alias counts as all that it stands for, so
/// a few lines of aliases of aliases cannot unfold into millions of nodes.
///
///   YamlCheck check([&](const YAML::Mark& mark, std::string message) { ... });
///   while (parser.HandleNextDocument(check)) {}
class YamlCheck final : public YAML::EventHandler {
 public:
  static constexpr int64_t kMaxNodes = 100'000;
  static constexpr int64_t kMaxDepth = 64;

  /// A text that is not to be read on; thrown out of the parser.
  struct Stop {
    YAML::Mark mark;
    std::string message;
  };

  /// `report` is called for each fault after which reading can go on: duplicate keys, merge keys,
  /// keys that are no plain words.
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
  /// What a node unfolds to.
  struct Extent {
    int64_t num_nodes = 1;
    int64_t height = 0;    // levels below it
    bool is_open = false;  // its end has not been read
  };
  /// A list or map whose end has not been read.
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

}  // namespace lockstep
