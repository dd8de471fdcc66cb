#pragma once

#include <optional>
#include <string>

#include "base/yaml/yaml_document.h"

namespace lockstep::recal {

/// Finds the YAML part of a recipe's text. For Markdown this is the front matter: the text between
/// the first line `---` and the next such line. Only blank lines and HTML comments may come before
/// it, and it does not begin at byte 0. Any other text is YAML as a whole.
///
/// The text decides. The file name only decides if both readings are possible: a text that
/// continues with YAML after the second `---`. It is Markdown in a `.md` or `.markdown` file, and
/// two YAML documents in other files.
///
/// Returns nullopt, with a fault, if a comment or the front matter has no end.
std::optional<TextPart> find_yaml(const std::string& file, const std::string& text,
                                  Diagnostics* faults);

}  // namespace lockstep::recal
