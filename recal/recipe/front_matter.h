#pragma once

#include <optional>
#include <string>

#include "base/yaml/yaml_document.h"

namespace lockstep::recal {

/// The YAML of a recipe's text. In a Markdown text that is its front matter: what stands between
/// its first line `---`, before which only blank lines and HTML comments may come, and the next
/// such line; it begins behind byte 0. Any other text is YAML as a whole.
///
/// The text decides; the ending of the file's name only where both readings are possible: a text
/// that goes on behind the second `---` with what looks like YAML is Markdown in a `.md` or
/// `.markdown` file and two YAML documents elsewhere.
///
/// Nothing, with a fault, if a comment or the front matter has no end.
std::optional<TextPart> find_yaml(const std::string& file, const std::string& text,
                                  Diagnostics* faults);

}  // namespace lockstep::recal
