#include "recal/masks/mask_kind.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/yaml/config_reader.h"

namespace lockstep::recal {
namespace {

/// Maximum of M, and the width of the word in which structured_masks.cpp holds a group.
constexpr int64_t kMaxNeighbours = 64;

std::string without_spaces(std::string_view text) {
  std::string out(text);
  std::erase(out, ' ');
  return out;
}

/// Parses "[1,N]" or "blockN".
std::optional<MaskKind> parse_block(std::string_view word) {
  constexpr std::string_view kOpen = "[1,", kWord = "block";
  std::optional<int64_t> size;
  if (word.starts_with(kOpen) && word.ends_with(']'))
    size = parse_integer(word.substr(kOpen.size(), word.size() - kOpen.size() - 1));
  if (word.starts_with(kWord)) size = parse_integer(word.substr(kWord.size()));
  if (!size || *size < 1 || *size > kMaxNeighbours) return std::nullopt;
  // Blocks of one weight are the unstructured kind, under one canonical form.
  return *size == 1 ? MaskKind{} : MaskKind{MaskPattern::kBlock, 0, *size};
}

std::optional<MaskKind> parse_n_of_m(const std::string& text) {
  if (text == "2:4transposable") return MaskKind{MaskPattern::kNofM, 2, 4, true};
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
  if (word == "filter") return MaskKind{MaskPattern::kFilter, 0, 0};
  if (word == "channel") return MaskKind{MaskPattern::kChannel, 0, 0};
  if (const std::optional<MaskKind> block = parse_block(word)) return block;
  return parse_n_of_m(word);
}

std::string MaskKind::text() const {
  if (pattern == MaskPattern::kBlock) return fmt::format("block{}", m);
  if (pattern == MaskPattern::kNofM)
    return fmt::format("{}:{}{}", n, m, transposable ? " transposable" : "");
  if (pattern == MaskPattern::kFilter) return "filter";
  return pattern == MaskPattern::kChannel ? "channel" : "unstructured";
}

int64_t MaskKind::num_prunable(std::span<const int64_t> sizes) const {
  if (sizes.empty() || pattern == MaskPattern::kNofM) return 0;
  const int64_t num_outputs = sizes[0];
  const int64_t num_inputs = sizes.size() > 1 ? sizes[1] : 1;
  int64_t num_positions = 1;
  for (size_t i = 2; i < sizes.size(); ++i) num_positions *= sizes[i];
  if (pattern == MaskPattern::kFilter) return num_outputs;
  if (pattern == MaskPattern::kChannel) return num_inputs;
  const int64_t group = pattern == MaskPattern::kBlock ? m : 1;
  // Rounded up: the last block of a row may be short.
  return num_outputs * ((num_inputs + group - 1) / group) * num_positions;
}

int64_t FisherOptions::memory_bytes(int64_t num_weights) const {
  return num_blocks(num_weights) * block_size * std::min(num_grads, block_size) *
         static_cast<int64_t>(sizeof(float));
}

std::string ScoreRule::text() const {
  if (kind == PruneScore::kFisher)
    return fmt::format("fisher {} {} {}", fisher.num_grads, fisher.damp, fisher.block_size);
  return kind == PruneScore::kMovement ? "movement" : "magnitude";
}

int64_t num_to_prune(double sparsity, int64_t num_things) {
  // Rounds half away from zero, the same on every machine.
  return std::llround(sparsity * static_cast<double>(num_things));
}

}  // namespace lockstep::recal
