#include "daemon/config/run_sections.h"

#include <algorithm>
#include <map>
#include <set>

#include "estimator/open_plugin.h"

namespace lockstep::daemon {
namespace {

std::vector<FieldDoc> fields_of(const std::string& text) {
  Diagnostics ignored;
  return fields_read_with(YamlDocument::parse("", text, &ignored));
}

bool is_listed(const std::vector<FieldDoc>& docs, const FieldDoc& field) {
  return std::any_of(docs.begin(), docs.end(), [&](const FieldDoc& other) {
    return other.path == field.path && other.help == field.help;
  });
}

std::string section_prefix(const std::string& path) { return path.substr(0, path.rfind('.') + 1); }

/// Behind the last key of its section.
void insert(const FieldDoc& field, std::vector<FieldDoc>* docs) {
  const auto last = std::find_if(docs->rbegin(), docs->rend(), [&](const FieldDoc& other) {
    return section_prefix(other.path) == section_prefix(field.path);
  });
  docs->insert(last == docs->rend() ? docs->end() : last.base(), field);
}

/// {a: {b: value}} of a.b.
std::string nested(const std::string& path, const std::string& value) {
  std::string text = "{" + path;
  size_t depth = 1;
  for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.'), ++depth)
    text.replace(dot, 1, ": {");
  return text + ": " + value + std::string(depth, '}');
}

std::vector<FieldDoc> collect_fields() {
  std::vector<FieldDoc> docs = fields_of("{data: {eval: {}}}");
  std::set<std::string> tried;  // a file gives the same fields each time
  for (size_t i = 0; i < docs.size(); ++i) {
    const FieldDoc field = docs[i];
    for (const std::string& choice : field.choices) {  // each may have keys of its own
      const std::string text = nested(field.path, choice);
      if (!tried.insert(text).second) continue;
      for (const FieldDoc& other : fields_of(text)) {
        if (is_listed(docs, other)) continue;
        insert(other, &docs);
        i = static_cast<size_t>(-1);  // which may have choices: begin anew
      }
    }
  }
  return docs;
}

}  // namespace

std::vector<FieldDoc> fields_read_with(const YamlDocument& document) {
  Diagnostics ignored;
  std::vector<FieldDoc> docs;
  ConfigReader in(document.root(), "", document, &ignored, &docs);
  (void)read_sections(&in);
  return docs;
}

std::vector<FieldDoc> run_file_meanings() {
  add_all_types();
  static std::map<size_t, std::vector<FieldDoc>> docs;  // each plug-in may add rows with keys
  const size_t num_plugins = estimator::opened_plugins().size();
  if (!docs.contains(num_plugins)) docs[num_plugins] = collect_fields();
  return docs[num_plugins];
}

std::vector<FieldDoc> run_file_fields() {
  std::vector<FieldDoc> once;
  std::set<std::string> seen;
  for (const FieldDoc& field : run_file_meanings())
    if (seen.insert(field.path).second) once.push_back(field);
  return once;
}

}  // namespace lockstep::daemon
