#include "base/yaml/yaml_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

namespace lockstep {

namespace {

constexpr int64_t kMaxNodes = 100'000;
constexpr int64_t kMaxDepth = 64;

/// Checker of the parser's events.
class YamlCheck final : public YAML::EventHandler {
 public:
  explicit YamlCheck(std::function<void(const YAML::Mark&, std::string)> report)
      : report_(std::move(report)) {}

  int64_t num_documents() const { return num_documents_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++num_documents_ > 1)
      throw YamlStop{mark, "contains a second document ('---'); one document per file is allowed"};
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add_scalar(mark, anchor, nullptr);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                const std::string& value) override {
    add_scalar(mark, anchor, &value);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const Extent& meant = anchored_[anchor];
    // An alias inside its own anchor would unfold without end.
    if (meant.is_open)
      throw YamlStop{mark, "this alias is inside its own anchor: it refers to itself"};
    note_key(mark, nullptr);
    add(mark, meant);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(mark, anchor, false);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(mark, anchor, true);
  }
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

  void add_scalar(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string* text) {
    note_key(mark, text);
    add(mark, {});
    if (anchor != YAML::NullAnchor) anchored_[anchor] = {};
  }
  void open(const YAML::Mark& mark, YAML::anchor_t anchor, bool is_map) {
    note_key(mark, nullptr);
    add(mark, {});
    // Marks a list or map that has not ended; OnAlias() refuses an alias to it.
    if (anchor != YAML::NullAnchor) anchored_[anchor] = {.is_open = true};
    levels_.push_back(
        {.is_map = is_map, .key_is_next = is_map, .anchor = anchor, .extent = {}, .keys = {}});
  }
  void close() {
    const Level level = std::move(levels_.back());
    levels_.pop_back();
    if (level.anchor != YAML::NullAnchor) anchored_[level.anchor] = level.extent;
    if (levels_.empty()) return;
    Extent& outer = levels_.back().extent;
    outer.num_nodes += level.extent.num_nodes - 1;  // add() has counted the list or map itself
    outer.height = std::max(outer.height, level.extent.height + 1);
  }
  void add(const YAML::Mark& mark, const Extent& extent) {
    num_nodes_ += extent.num_nodes;
    if (num_nodes_ > kMaxNodes)
      throw YamlStop{mark, "contains more than 100,000 nodes (each use of an alias counts)"};
    if (static_cast<int64_t>(levels_.size()) + extent.height > kMaxDepth)
      throw YamlStop{mark, "is nested more than 64 deep"};
    if (levels_.empty()) return;
    Extent& outer = levels_.back().extent;
    outer.num_nodes += extent.num_nodes;
    outer.height = std::max(outer.height, extent.height + 1);
  }
  void note_key(const YAML::Mark& mark, const std::string* text) {
    if (levels_.empty() || !levels_.back().is_map) return;
    Level& level = levels_.back();
    // In a map, keys and values alternate.
    if (!std::exchange(level.key_is_next, !level.key_is_next)) return;
    if (text == nullptr) {
      report_(mark, "a key must be a plain word");
    } else if (*text == "<<") {
      report_(mark, "merge keys ('<<') are not supported: write the keys out");
    } else if (!level.keys.insert(*text).second) {
      report_(mark, "duplicate key '" + *text + "': keep one of them");
    }
  }

  std::function<void(const YAML::Mark&, std::string)> report_;
  std::vector<Level> levels_;
  std::map<YAML::anchor_t, Extent> anchored_;
  int64_t num_documents_ = 0;
  int64_t num_nodes_ = 0;
};

/// Returns the offset of the first byte that is not valid UTF-8, or npos.
size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    // Shortest forms only: 0xC0 and 0xC1 would start overlong sequences, 0xF5 and above exceed
    // U+10FFFF.
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return i;
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace

bool text_is_sound(const std::string& name, const std::string& text, int64_t max_bytes,
                   Diagnostics* faults) {
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    faults->add({name, 0, 0, "has more than 1 MiB", ""});
    return false;
  }
  const size_t bad = first_invalid_utf8(text);
  if (bad == std::string_view::npos) return true;
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
  // Without the source line, since its bytes could confuse a terminal or a log reader.
  faults->add(
      {name, line, 0, fmt::format("byte {} is not valid UTF-8: save it as UTF-8", bad), ""});
  return false;
}

std::string_view line_of(std::string_view text, int64_t line) {
  for (; line > 0; --line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

bool check_events(const std::string& yaml,
                  const std::function<void(const YAML::Mark&, std::string)>& report) {
  YamlCheck check(report);
  std::istringstream stream(yaml);
  YAML::Parser parser(stream);
  while (parser.HandleNextDocument(check)) {
  }
  return check.num_documents() > 0;
}

std::string parser_hint(std::string_view line, const std::string& message) {
  // yaml-cpp's own messages do not mention tabs or the special meaning of * and &.
  if (line.find('\t') != std::string_view::npos)
    return "this line contains a tab: indent with spaces";
  if (message.find("anchor") != std::string::npos || message.find("alias") != std::string::npos)
    return message + " (a string that begins with '*' or '&' must be quoted)";
  return message;
}

}  // namespace lockstep
