#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>

#include "metrics/page.pb.h"
#include "metrics/page_formats.h"

// Merges pages of several ranks. Text is merged line by line, without parsing the values.
namespace lockstep::metrics {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

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

/// Returns those of `labels` that the series does not have, as text.
std::string labels_to_add(const Labels& labels, std::string_view own) {
  std::string text;
  for (const auto& [name, value] : labels) {
    if (has_label(own, name)) continue;
    if (!text.empty()) text += ',';
    text.append(name).append("=\"").append(value).append("\"");
  }
  return text;
}

/// Adds labels to the lines "name{own} 1" and "name 1".
void add_series(std::string_view line, const Labels& labels, std::string* text) {
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

/// Adds the families of a page to the texts by family, which are ordered by name.
void add_text(const RankPage& page, std::map<std::string, std::string>* text_of) {
  std::string_view lines = page.content, family;
  bool is_new = false;
  while (!lines.empty()) {
    const std::string_view line = take_until('\n', &lines);
    if (line.starts_with(kHelp) || line.starts_with(kType)) {
      // HELP and TYPE have the same length, so one offset fits both.
      std::string_view words = line.substr(kHelp.size());
      const std::string_view name = take_until(' ', &words);
      // Only the first page that has a family provides its help and type.
      if (name != family) is_new = !text_of->contains(std::string(name));
      family = name;
      std::string& text = (*text_of)[std::string(family)];
      if (is_new) text.append(line).append("\n");
    } else if (!line.empty() && line.front() != '#') {
      add_series(line, page.labels, &(*text_of)[std::string(family)]);
    }
  }
}

void add_labels(const Labels& labels, prom::pb::Series* series) {
  for (const auto& [name, value] : labels) {
    const auto& own = series->label();
    if (std::any_of(own.begin(), own.end(),
                    [&name = name](const prom::pb::Label& label) { return label.name() == name; }))
      continue;
    prom::pb::Label* label = series->add_label();
    label->set_name(name);
    label->set_value(value);
  }
}

/// Adds the families of a page. Reads up to the first fault.
void add_messages(const RankPage& page, std::map<std::string, prom::pb::Family>* families) {
  google::protobuf::io::ArrayInputStream stream(page.content.data(),
                                                static_cast<int>(page.content.size()));
  prom::pb::Family family;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&family, &stream, nullptr)) {
    for (prom::pb::Series& series : *family.mutable_metric()) add_labels(page.labels, &series);
    const auto [known, is_new] = families->try_emplace(family.name(), family);
    if (!is_new) known->second.mutable_metric()->MergeFrom(family.metric());
    family.Clear();
  }
}

std::string merged_messages(const std::vector<RankPage>& pages) {
  std::map<std::string, prom::pb::Family> families;
  for (const RankPage& page : pages) add_messages(page, &families);
  std::string all;
  google::protobuf::io::StringOutputStream stream(&all);
  for (const auto& [name, family] : families)
    google::protobuf::util::SerializeDelimitedToZeroCopyStream(family, &stream);
  return all;
}

}  // namespace

std::string merged_page(PageFormat format, const std::vector<RankPage>& pages) {
  if (format == PageFormat::kProtobuf) return merged_messages(pages);
  std::map<std::string, std::string> text_of;
  for (const RankPage& page : pages) add_text(page, &text_of);
  std::string all;
  for (const auto& [name, text] : text_of) all += text;
  if (format == PageFormat::kOpenMetrics) all += "# EOF\n";
  return all;
}

}  // namespace lockstep::metrics
