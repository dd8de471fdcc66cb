#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::recal {

/// Which weights are pruned together. Symbols: O = outputs, I = inputs of a weight [O, I, ...].
enum class MaskPattern {
  kUnstructured,  ///< each by itself
  kBlock,         ///< blocks of m neighbouring inputs
  kNofM,          ///< of m neighbouring inputs at most n are kept in the end
  kFilter,        ///< all weights of one output
  kChannel,       ///< all weights of one input
};

struct MaskKind {
  MaskPattern pattern = MaskPattern::kUnstructured;
  int64_t n = 0;  ///< kNofM: kept of each m
  int64_t m = 0;  ///< kBlock, kNofM: neighbours

  /// unstructured, block4, [1, N] (blocks of N inputs; [1, 1] = unstructured, [1, 4] = block4), N:M
  /// with 0 < N < M, filter, channel; N and M at most 64. Nothing for any other text.
  static std::optional<MaskKind> parse(std::string_view text);
  /// unstructured, block4, 2:4, filter, channel.
  std::string text() const;
  /// How many things a sparsity counts in a weight [O, I, ...]: weights, or the groups that go
  /// together; 0 for N:M, which leaves some of each group anyway, and where `sizes` is empty.
  int64_t num_prunable(std::span<const int64_t> sizes) const;
  bool operator==(const MaskKind&) const = default;
};

/// How many of n things (weights, groups) sparsity s prunes: llround(s * n).
int64_t num_to_prune(double sparsity, int64_t num_things);

/// 1 - N/M is not exact in binary; what a recipe writes for it may differ in the last digits.
inline constexpr double kRoundingOfSparsity = 1e-9;

/// How the parameters of one set are pruned.
struct MaskRule {
  MaskKind kind;
  bool global = false;  ///< one threshold over all parameters of the set, not one each
  bool operator==(const MaskRule&) const = default;
};

}  // namespace lockstep::recal
