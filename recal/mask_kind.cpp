#include "recal/mask_kind.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/yaml_fields.h"

namespace lockstep::recal {
namespace {

constexpr int64_t kMaxNeighbours = 64;

std::string without_spaces(std::string_view text) {
  std::string out(text);
  std::erase(out, ' ');
  return out;
}

std::optional<MaskKind> parse_n_of_m(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::optional<int64_t> n = parse_integer(text.substr(0, colon));
  const std::optional<int64_t> m = parse_integer(text.substr(colon + 1));
  if (!n || !m || *n < 1 || *n >= *m || *m > kMaxNeighbours) return std::nullopt;
  return MaskKind{MaskPattern::kNofM, *n, *m};
}

}  // namespace

std::optional<MaskKind> MaskKind::parse(std::string_view text) {
  const std::string word = without_spaces(text);
  if (word == "unstructured") return MaskKind{};
  if (word == "block4" || word == "[1,4]") return MaskKind{MaskPattern::kBlock, 0, 4};
  if (word == "filter") return MaskKind{MaskPattern::kFilter, 0, 0};
  if (word == "channel") return MaskKind{MaskPattern::kChannel, 0, 0};
  return parse_n_of_m(word);
}

std::string MaskKind::text() const {
  switch (pattern) {
    case MaskPattern::kUnstructured:
      return "unstructured";
    case MaskPattern::kBlock:
      return fmt::format("block{}", m);
    case MaskPattern::kNofM:
      return fmt::format("{}:{}", n, m);
    case MaskPattern::kFilter:
      return "filter";
    case MaskPattern::kChannel:
      return "channel";
  }
  return "";
}

}  // namespace lockstep::recal
