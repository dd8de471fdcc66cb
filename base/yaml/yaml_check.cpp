#include "base/yaml/yaml_check.h"

#include <algorithm>
#include <utility>

namespace lockstep {

void YamlCheck::OnDocumentStart(const YAML::Mark& mark) {
  if (++num_documents_ > 1)
    throw Stop{mark, "holds a second document ('---'): one file, one document"};
}

void YamlCheck::OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) {
  note_key(mark, nullptr);
  add(mark, {});
  if (anchor != YAML::NullAnchor) anchored_[anchor] = {};
}

void YamlCheck::OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                         const std::string& value) {
  note_key(mark, &value);
  add(mark, {});
  if (anchor != YAML::NullAnchor) anchored_[anchor] = {};
}

void YamlCheck::OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) {
  const Extent& meant = anchored_[anchor];
  // An alias inside its own anchor would unfold without end.
  if (meant.is_open)
    throw Stop{mark, "this alias stands inside what it names: it refers to itself"};
  note_key(mark, nullptr);
  add(mark, meant);
}

void YamlCheck::OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/,
                                YAML::anchor_t anchor, YAML::EmitterStyle::value /*style*/) {
  open(mark, anchor, false);
}

void YamlCheck::OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/,
                           YAML::anchor_t anchor, YAML::EmitterStyle::value /*style*/) {
  open(mark, anchor, true);
}

void YamlCheck::open(const YAML::Mark& mark, YAML::anchor_t anchor, bool is_map) {
  note_key(mark, nullptr);
  add(mark, {});
  // Marks a list or map that has not ended; OnAlias() refuses an alias to it.
  if (anchor != YAML::NullAnchor) anchored_[anchor] = {.is_open = true};
  levels_.push_back(
      {.is_map = is_map, .key_is_next = is_map, .anchor = anchor, .extent = {}, .keys = {}});
}

void YamlCheck::close() {
  const Level level = std::move(levels_.back());
  levels_.pop_back();
  if (level.anchor != YAML::NullAnchor) anchored_[level.anchor] = level.extent;
  if (levels_.empty()) return;
  Extent& outer = levels_.back().extent;
  outer.num_nodes += level.extent.num_nodes - 1;  // add() has counted the list or map itself
  outer.height = std::max(outer.height, level.extent.height + 1);
}

void YamlCheck::add(const YAML::Mark& mark, const Extent& extent) {
  num_nodes_ += extent.num_nodes;
  if (num_nodes_ > kMaxNodes)
    throw Stop{mark, "holds more than 100,000 nodes (each use of an alias counts anew)"};
  if (static_cast<int64_t>(levels_.size()) + extent.height > kMaxDepth)
    throw Stop{mark, "is nested more than 64 deep"};
  if (levels_.empty()) return;
  Extent& outer = levels_.back().extent;
  outer.num_nodes += extent.num_nodes;
  outer.height = std::max(outer.height, extent.height + 1);
}

void YamlCheck::note_key(const YAML::Mark& mark, const std::string* text) {
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

}  // namespace lockstep
