#include "metrics/gather/merged_page.h"

#include <algorithm>
#include <map>
#include <utility>

// Merges pages as text, line by line, without parsing the values.
namespace lockstep::metrics {
namespace {

constexpr std::string_view kHelp = "# HELP ", kType = "# TYPE ";

/// Removes the part before `mark`, and the mark, from the text and returns the part. Without the
/// mark, removes everything.
std::string_view take_until(char mark, std::string_view* text) {
  const size_t at = text->find(mark);
  const std::string_view part = text->substr(0, at);
  text->remove_prefix(at == text->npos ? text->size() : at + 1);
  return part;
}

/// Returns the end of the first label in rank="1",node="n1", after the closing quote.
size_t end_of_label(std::string_view labels) {
  size_t at = labels.find('"') + 1;
  // A backslash escapes the next character, also a quote.
  while (at < labels.size() && labels[at] != '"') at += labels[at] == '\\' ? 2 : 1;
  return at + 1;
}

/// True if `labels`, the text between a series' braces, contains a label of that name.
bool has_label(std::string_view labels, std::string_view name) {
  while (labels.find('"') != labels.npos) {
    if (labels.starts_with(name) && labels.substr(name.size()).starts_with("=\"")) return true;
    labels.remove_prefix(std::min(end_of_label(labels), labels.size()));
    if (labels.starts_with(',')) labels.remove_prefix(1);
  }
  return false;
}

/// Returns those of `labels` that the series does not have.
std::string labels_to_add(std::string_view labels, std::string_view own) {
  std::string text;
  while (!labels.empty()) {
    const size_t end = end_of_label(labels);
    const std::string_view label = labels.substr(0, end);
    labels.remove_prefix(std::min(end + 1, labels.size()));
    if (has_label(own, label.substr(0, label.find('=')))) continue;
    if (!text.empty()) text += ',';
    text += label;
  }
  return text;
}

/// Adds labels to the lines "name{own} 1" and "name 1".
void add_series(std::string_view line, const std::string& labels, std::string* text) {
  const size_t name_end = line.find_first_of("{ ");
  if (name_end == line.npos) return;  // not a line of that format
  std::string_view rest = line.substr(name_end);
  const bool has_labels = rest.front() == '{';
  if (has_labels) rest.remove_prefix(1);
  const std::string more = labels_to_add(labels, has_labels ? rest : std::string_view());
  text->append(line.substr(0, name_end));
  if (has_labels || !more.empty()) *text += '{';
  text->append(more);
  if (has_labels && !more.empty() && !rest.starts_with('}')) *text += ',';
  if (!has_labels && !more.empty()) *text += '}';
  text->append(rest).append("\n");
}

/// Families of all pages, ordered by name.
class Families {
 public:
  void add(const RankPage& page) {
    std::string_view lines = page.text, family;
    bool is_new = false;
    while (!lines.empty()) {
      const std::string_view line = take_until('\n', &lines);
      if (line.starts_with(kHelp) || line.starts_with(kType)) {
        // HELP and TYPE have the same length, so one offset fits both.
        std::string_view words = line.substr(kHelp.size());
        const std::string_view name = take_until(' ', &words);
        // Only the first page that has a family provides its help and type.
        if (name != family) is_new = !text_of_.contains(std::string(name));
        family = name;
        std::string& text = text_of_[std::string(family)];
        if (is_new) text.append(line).append("\n");
      } else if (!line.empty() && line.front() != '#') {
        add_series(line, page.labels, &text_of_[std::string(family)]);
      }
    }
  }

  std::string text() const {
    std::string all;
    for (const auto& [name, text] : text_of_) all += text;
    return all;
  }

 private:
  std::map<std::string, std::string> text_of_;  ///< by family
};

}  // namespace

std::string merged_page(const std::vector<RankPage>& pages) {
  Families families;
  for (const RankPage& page : pages) families.add(page);
  return families.text();
}

}  // namespace lockstep::metrics
