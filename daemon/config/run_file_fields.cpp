#include "daemon/config/run_config.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/process.h"
#include "estimator/open_plugin.h"

// Lists all keys of the run file. Some keys exist only with certain choices (optimizer.type), so
// files with every choice are read until no new key appears.
namespace lockstep::daemon {
namespace {

std::vector<FieldDoc> fields_of(const std::string& text) {
  Diagnostics ignored;
  return fields_read_with(YamlDocument::parse("", text, &ignored));
}

std::string section_prefix(const std::string& path) { return path.substr(0, path.rfind('.') + 1); }

/// Inserts a field after the last key of its section.
void insert(const FieldDoc& field, std::vector<FieldDoc>* docs) {
  const auto last = std::find_if(docs->rbegin(), docs->rend(), [&](const FieldDoc& other) {
    return section_prefix(other.path) == section_prefix(field.path);
  });
  docs->insert(last == docs->rend() ? docs->end() : last.base(), field);
}

/// Returns a nested map for a path: a: {b: value} for a.b.
std::string nested(const std::string& path, const std::string& value) {
  std::string text = path;
  size_t depth = 0;
  for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.'), ++depth)
    text.replace(dot, 1, ": {");
  return text + ": " + value + std::string(depth, '}');
}

/// Returns a file with an untried choice of each section; empty if all were tried.
std::string next_file(const std::vector<FieldDoc>& docs, std::set<std::string>* tried) {
  std::map<std::string, std::string> choice_by_section;
  for (const FieldDoc& field : docs) {
    const std::string section = field.path.substr(0, field.path.find('.'));
    for (const std::string& choice : field.choices) {
      if (choice_by_section.contains(section)) break;
      const std::string text = nested(field.path, choice);
      if (tried->insert(text).second) choice_by_section[section] = text;
    }
  }
  std::string file;
  for (const auto& [section, text] : choice_by_section) file += (file.empty() ? "" : ", ") + text;
  return file.empty() ? "" : "{" + file + "}";
}

/// Collects the fields of all choices. A choice may add keys with further choices. Choices of one
/// section add no keys to another, so one file can contain a choice of each section.
std::vector<FieldDoc> collect_fields() {
  const auto name = [](const FieldDoc& field) { return field.path + '\n' + field.help; };
  std::vector<FieldDoc> docs = fields_of("{data: {eval: {}}}");
  std::set<std::string> listed, tried;
  for (const FieldDoc& field : docs) listed.insert(name(field));
  for (std::string file = next_file(docs, &tried); !file.empty(); file = next_file(docs, &tried))
    for (const FieldDoc& field : fields_of(file))
      if (listed.insert(name(field)).second) insert(field, &docs);
  return docs;
}

/// Fields by the number of open plug-ins, because each may add rows with keys.
std::map<size_t, std::vector<FieldDoc>>& docs_by_plugins() {
  static std::map<size_t, std::vector<FieldDoc>> docs;
  return docs;
}

// Without plug-ins all rows are the program's own, also in later jobs. To collect them takes 40 ms.
const ProcessState docs_of_fields("docs of fields", [] {
  std::erase_if(docs_by_plugins(), [](const auto& docs) { return docs.first > 0; });
});

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
  const size_t num_plugins = estimator::opened_plugins().size();
  auto& docs = docs_by_plugins();
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
