#include "base/text.h"
#include "daemon/config/program.h"

#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

// Generated from the CLI11 definitions, so that completion and manual page cannot become outdated.
namespace lockstep::daemon {
namespace {

std::vector<const CLI::App*> below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_positional(); });
}

/// Returns the names of sub-commands and all spellings of options.
std::vector<std::string> words_of(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : below(app)) words.push_back(sub->get_name());
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : option->get_snames()) words.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  return words;
}

/// Adds a line of the script's `case` for this command and for each command below it. `path`: "
/// ckpt ls".
void add_cases(const CLI::App& app, const std::string& path, std::vector<std::string>* paths,
               std::string* cases) {
  *cases += fmt::format("    '{}') offers='{}' ;;\n", path, fmt::join(words_of(app), " "));
  for (const CLI::App* sub : below(app)) {
    paths->push_back(fmt::format("'{} {}'", path, sub->get_name()));
    add_cases(*sub, path + " " + sub->get_name(), paths, cases);
  }
}

/// Escapes a text for roff: backslashes, hyphens, and a control character at a line's start.
std::string roff(const std::string& text) {
  std::string out;
  for (const std::string& line : split(text)) {
    if (!line.empty() && (line[0] == '.' || line[0] == '\'')) out += "\\&";
    for (const char c : line) out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    out += "\n";
  }
  return out;
}

/// Adds each option with its description as a tagged paragraph.
void add_options(const CLI::App& app, std::string* page) {
  for (const CLI::Option* option : app.get_options({})) {
    std::string head = option->get_name(/*positional=*/false, /*all_options=*/true);
    if (head.empty()) head = option->get_name(/*positional=*/true);
    if (!option->get_positional() && option->get_type_size() != 0)
      head += " " + option->get_type_name();
    *page += fmt::format(".TP\n\\fB{}\\fR\n{}", trimmed(roff(head), "\n"),
                         roff(option->get_description()));
  }
}

void add_verbatim(const std::string& text, std::string* page) {
  if (!text.empty()) *page += ".PP\n.nf\n" + roff(text) + ".fi\n";
}

/// Adds each command and its options, recursively.
void add_commands(const CLI::App& app, const std::string& path, std::string* page) {
  for (const CLI::App* sub : below(app)) {
    const std::string name = path + " " + sub->get_name();
    *page += fmt::format(".SS \"{}\"\n{}", trimmed(roff(name), "\n"), roff(sub->get_description()));
    add_options(*sub, page);
    add_verbatim(sub->get_footer(), page);
    add_commands(*sub, name, page);
  }
}

/// Adds the examples that begin with the command's full name, recursively.
void add_examples_of(CLI::App* app, const std::string& path,
                     std::span<const std::string_view> examples) {
  std::string lines;
  for (const std::string_view line : examples)
    if (line.starts_with(path + " ")) lines += fmt::format("\n  {}", line);
  const std::string own = app->get_footer();
  // One line needs "Example:", several need "Examples:". An existing footer stays below.
  if (!lines.empty())
    app->footer((lines.rfind('\n') == 0 ? "Example:" : "Examples:") + lines +
                (own.empty() ? "" : "\n" + own));
  for (CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
    add_examples_of(sub, path + " " + sub->get_name(), examples);
}

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> paths;
  std::string cases;
  add_cases(app, "", &paths, &cases);
  const std::string known =
      paths.empty() ? ""
                    : fmt::format("      {}) path=\"$path $word\" ;;\n", fmt::join(paths, "|"));
  return fmt::format(
      R"(# Completion of {0} for bash: source <({0} --completion)
_{0}() {{
  local path='' offers='' word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $word" in
{1}      *) ;;
    esac
  done
  case "$path" in
{2}  esac
  mapfile -t COMPREPLY < <(compgen -W "$offers" -- "${{COMP_WORDS[COMP_CWORD]}}")
}}
complete -o default -F _{0} {0}
)",
      app.get_name(), known, cases);
}

std::string man_page(const CLI::App& app) {
  const std::string& name = app.get_name();
  std::string page =
      fmt::format(".TH {} 1 \"\" \"Lockstep {}\" \"User Commands\"\n.SH NAME\n{} \\- {}", name,
                  version_facts().version, name, roff(app.get_description()));
  page += fmt::format(".SH SYNOPSIS\n.B {}\n[OPTIONS]{}\n.SH OPTIONS\n", name,
                      below(app).empty() ? "" : " [COMMAND ...]");
  add_options(app, &page);
  if (!below(app).empty()) page += ".SH COMMANDS\n";
  add_commands(app, name, &page);
  page += ".SH NOTES\n";
  add_verbatim(app.get_footer(), &page);
  return page;
}

/// Adds an option that prints the text of `make` and ends parsing like --help.
void add_printer(CLI::App* app, const char* name, const char* help,
                 std::string (*make)(const CLI::App&)) {
  app->add_flag_callback(
         name,
         [app, make] {
           std::fputs(make(*app).c_str(), stdout);
           throw CLI::Success();
         },
         help)
      ->trigger_on_parse();
}

}  // namespace

void add_examples(CLI::App* app, std::span<const std::string_view> examples) {
  add_examples_of(app, app->get_name(), examples);
}

void add_help_pages(CLI::App* app) {
  add_printer(app, "--completion", "print a bash completion script and exit", bash_completion);
  add_printer(app, "--man", "print this help as a manual page and exit", man_page);
}

}  // namespace lockstep::daemon
