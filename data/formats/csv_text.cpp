#include "data/formats/parsers.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::data {
namespace {

class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& file) : rest_(text), file_(file) {
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);  // byte order mark
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> all;
    while (!rest_.empty()) {
      if (take_line_end()) continue;
      all.push_back(row());
    }
    return all;
  }

 private:
  CsvRow row() {
    CsvRow row{line_, {}};
    while (true) {
      row.fields.push_back(rest_.starts_with('"') ? quoted() : plain());
      if (rest_.starts_with(',')) {
        rest_.remove_prefix(1);
        continue;
      }
      if (!rest_.empty() && !take_line_end())
        refuse_file(fmt::format("{}:{}", file_, line_), "text after a closing quote");
      return row;
    }
  }

  std::string plain() {
    const size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
    std::string_view field = rest_.substr(0, end);
    rest_.remove_prefix(end);
    // The \r belongs to the line's end, not to the field.
    if (field.ends_with('\r') && !rest_.starts_with(',')) field.remove_suffix(1);
    return std::string(field);
  }

  std::string quoted() {
    const int64_t first_line = line_;
    rest_.remove_prefix(1);
    std::string field;
    while (true) {
      const size_t quote = rest_.find('"');
      if (quote == std::string_view::npos)
        refuse_file(fmt::format("{}:{}", file_, first_line),
                    "a quote that opens here is never closed");
      field += rest_.substr(0, quote);
      // Error messages need the line number, and a quoted field may span lines.
      line_ += std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(quote), '\n');
      rest_.remove_prefix(quote + 1);
      // Two quotes inside a quoted field mean one quote.
      if (!rest_.starts_with('"')) return field;
      field += '"';
      rest_.remove_prefix(1);
    }
  }

  bool take_line_end() {
    const size_t length = rest_.starts_with("\r\n") ? 2 : rest_.starts_with('\n') ? 1 : 0;
    rest_.remove_prefix(length);
    if (length > 0) ++line_;
    return length > 0;
  }

  std::string_view rest_;
  const std::string& file_;
  int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& file) {
  return CsvParser(text, file).rows();
}

}  // namespace lockstep::data
