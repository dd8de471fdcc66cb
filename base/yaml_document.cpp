#include "base/yaml_document.h"

#include <set>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int64_t kMaxNodes = 100'000;
constexpr int kMaxDepth = 100;

/// Byte offset of the first byte that is not valid UTF-8, or npos.
size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
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

/// Walks a parsed tree once, adding a fault for each duplicate or merge key. False once the node or
/// depth cap is passed: an alias may name a node that it stands in.
class TreeCheck {
 public:
  TreeCheck(const YamlDocument& document, Faults* faults) : document_(document), faults_(faults) {}

  bool visit(const YAML::Node& node, int depth = 0) {
    if (++num_nodes_ > kMaxNodes || depth > kMaxDepth) return false;
    if (node.IsSequence()) {
      for (const YAML::Node& item : node)
        if (!visit(item, depth + 1)) return false;
    }
    if (!node.IsMap()) return true;
    std::set<std::string> seen;
    for (const auto& pair : node) {
      check_key(pair.first, &seen);
      if (!visit(pair.second, depth + 1)) return false;
    }
    return true;
  }

 private:
  void check_key(const YAML::Node& key, std::set<std::string>* seen) {
    if (!key.IsScalar()) {
      faults_->add(document_.fault_at(key, "a key must be a plain word"));
    } else if (key.Scalar() == "<<") {
      faults_->add(
          document_.fault_at(key, "merge keys ('<<') are not supported: write the keys out"));
    } else if (!seen->insert(key.Scalar()).second) {
      faults_->add(
          document_.fault_at(key, "duplicate key '" + key.Scalar() + "': keep one of them"));
    }
  }

  const YamlDocument& document_;
  Faults* faults_;
  int64_t num_nodes_ = 0;
};

std::string parser_hint(std::string_view line, const std::string& message) {
  if (line.find('\t') != std::string_view::npos)
    return "a tab stands in this line: indent with spaces";
  if (message.find("anchor") != std::string::npos || message.find("alias") != std::string::npos)
    return message + " (a text that begins with '*' or '&' must be quoted)";
  return message;
}

}  // namespace

std::string Faults::text() const {
  std::string out;
  for (const Fault& fault : list_) {
    out += fault.file;
    if (fault.line > 0) out += fmt::format(":{}:{}", fault.line, fault.column);
    out += ": error: " + fault.message + "\n";
    if (!fault.source_line.empty())
      out += fmt::format("  {}\n  {:>{}}\n", fault.source_line, "^", fault.column);
  }
  return out +
         fmt::format("{} error{}; nothing was started", list_.size(), list_.size() == 1 ? "" : "s");
}

void Faults::throw_if_any(std::string_view area) const {
  if (!empty()) throw Error(ExitCode::kConfig, area, "the configuration has faults\n" + text());
}

YamlDocument YamlDocument::parse(std::string file, std::string text, Faults* faults) {
  YamlDocument document;
  document.file_ = std::move(file);
  document.text_ = std::move(text);
  const auto refuse = [&](int64_t line, int64_t column, std::string message) {
    faults->add({document.file_, line, column, std::move(message), document.line_text(line)});
    document.root_ = YAML::Node();
    return document;
  };
  if (document.text_.size() > static_cast<size_t>(kMaxFileBytes))
    return refuse(0, 0, "has more than 1 MiB");
  if (const size_t bad = first_invalid_utf8(document.text_); bad != std::string_view::npos) {
    const auto line =
        1 + std::count(document.text_.begin(),
                       document.text_.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    // Without the source line: a terminal or a log reader need not cope with its bytes.
    faults->add({document.file_, line, 0,
                 fmt::format("byte {} of the file is not valid UTF-8: save the file as UTF-8", bad),
                 ""});
    return document;
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(document.text_);
    if (documents.empty() || (documents.size() == 1 && documents[0].IsNull()))
      return refuse(0, 0, "is empty");
    if (documents.size() > 1)
      return refuse(documents[1].Mark().line + 1, 1,
                    "holds a second document ('---'): one file, one document");
    document.root_ = documents[0];
  } catch (const YAML::Exception& fault) {
    const int64_t line = fault.mark.is_null() ? 0 : fault.mark.line + 1;
    const int64_t column = fault.mark.is_null() ? 0 : fault.mark.column + 1;
    return refuse(line, column, parser_hint(document.line_text(line), fault.msg));
  }
  if (!TreeCheck(document, faults).visit(document.root_))
    return refuse(
        0, 0, "holds more than 100,000 nodes, is nested more than 100 deep, or refers to itself");
  return document;
}

YamlDocument YamlDocument::load(const std::string& path, Faults* faults) {
  return parse(path, files::read(path, 64 * kMaxFileBytes), faults);
}

Fault YamlDocument::fault_at(const YAML::Node& node, std::string message) const {
  const YAML::Mark mark = node.IsDefined() ? node.Mark() : YAML::Mark::null_mark();
  if (mark.is_null()) {
    const bool added = node.IsDefined() && !origin_of_additions_.empty();
    return {added ? origin_of_additions_ : file_, 0, 0, std::move(message), ""};
  }
  return {file_, mark.line + 1, mark.column + 1, std::move(message), line_text(mark.line + 1)};
}

std::string YamlDocument::line_text(int64_t line) const {
  if (line <= 0) return "";
  size_t begin = 0;
  for (int64_t i = 1; i < line && begin != std::string::npos; ++i) {
    begin = text_.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos || begin >= text_.size()) return "";
  return text_.substr(begin, std::min(text_.find('\n', begin), text_.size()) - begin)
      .substr(0, 160);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t replace = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replace}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_word(word, candidates);
  return near.empty() ? "" : " (did you mean '" + near + "'?)";
}

}  // namespace lockstep
