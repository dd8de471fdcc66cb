#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::recal {

/// Groups of weights that are pruned together. O = outputs, I = inputs of a weight [O, I, ...].
enum class MaskPattern {
  kUnstructured,  ///< each weight alone
  kBlock,         ///< blocks of m neighbouring inputs
  kNofM,          ///< at most n of m neighbouring inputs are kept in the end
  kFilter,        ///< all weights of one output
  kChannel,       ///< all weights of one input
};

struct MaskKind {
  MaskPattern pattern = MaskPattern::kUnstructured;
  int64_t n = 0;  ///< kNofM: kept weights of each m
  int64_t m = 0;  ///< kBlock, kNofM: number of neighbours
  /// kNofM, 2:4 only: 2 of 4 neighbouring outputs are kept, too, so the transposed weight is 2:4.
  bool transposable = false;

  /// Parses "unstructured", "block4", "[1, N]" (blocks of N inputs; [1, 1] = unstructured, [1, 4] =
  /// block4), "N:M" with 0 < N < M, "2:4 transposable", "filter" or "channel". N and M are at most
  /// 64. Returns nullopt for any other text.
  static std::optional<MaskKind> parse(std::string_view text);
  /// Canonical text: unstructured, block4, 2:4, 2:4 transposable, filter, channel.
  std::string text() const;
  /// Number of units that a sparsity counts in a weight [O, I, ...]: weights, or whole groups. 0
  /// for N:M, which always keeps some weights of each group, and for empty `sizes`.
  int64_t num_prunable(std::span<const int64_t> sizes) const;
  bool operator==(const MaskKind&) const = default;
};

/// Number of units (weights or groups) that sparsity s prunes: llround(s * num_things).
int64_t num_to_prune(double sparsity, int64_t num_things);

/// Tolerance for 1 - N/M, which is not exact in binary: a recipe's value may differ slightly.
inline constexpr double kRoundingOfSparsity = 1e-9;

/// Order in which weights are pruned.
enum class PruneScore {
  kMagnitude,
  kMovement,  ///< recal/gradient_scores.h
  kFisher,    ///< recal/masks/block_fisher.h
};

/// Options of second-order pruning.
struct FisherOptions {
  int64_t num_grads = 1024;  ///< most gradients that count for an update of the mask
  double damp = 1e-7;        ///< lambda
  int64_t block_size = 50;   ///< B

  int64_t num_blocks(int64_t num_weights) const {
    return (num_weights + block_size - 1) / block_size;
  }
  /// Bytes of the statistics of D weights: B * D floats, or num_grads * D if that is less.
  int64_t memory_bytes(int64_t num_weights) const;
  bool operator==(const FisherOptions&) const = default;
};

struct ScoreRule {
  PruneScore kind = PruneScore::kMagnitude;
  FisherOptions fisher;  ///< kFisher
  /// Canonical text: magnitude, movement, "fisher 1024 1e-07 50".
  std::string text() const;
  bool operator==(const ScoreRule&) const = default;
};

/// Rule by which the parameters of one set are pruned.
struct MaskRule {
  MaskKind kind;
  bool global = false;  ///< one threshold over all parameters of the set
  bool operator==(const MaskRule&) const = default;
};

}  // namespace lockstep::recal
