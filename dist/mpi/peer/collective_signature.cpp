// Text and comparison of the calls that ranks exchange in notes and in shared memory.
#include "dist/mpi/peer/collective_signature.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::dist::mpi {
namespace {

std::string_view name_of(CallKind kind) {
  constexpr std::array<std::string_view, 7> kNames{"all_reduce",  "reduce_scatter", "all_gather",
                                                   "broadcast",   "barrier",        "split",
                                                   "share_memory"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown call";
}

std::string argument_text(const Call& call) {
  constexpr std::array<std::string_view, 3> kOps{"sum", "minimum", "maximum"};
  const auto index = static_cast<size_t>(call.argument);
  if (call.kind == CallKind::kAllReduce && index < kOps.size())
    return fmt::format(" ({})", kOps[index]);
  if (call.kind == CallKind::kBroadcast) return fmt::format(" (from rank {})", call.argument);
  return {};
}

}  // namespace

std::string text_of(const Call& call) {
  if (call.kind == CallKind::kShareMemory)
    return fmt::format("share_memory of {} bytes, call {}", call.num_items, call.number);
  const bool has_items = call.kind != CallKind::kBarrier && call.kind != CallKind::kSplit;
  const std::string items =
      has_items ? fmt::format(" of {} {}", call.num_items,
                              c10::toString(static_cast<at::ScalarType>(call.dtype)))
                : std::string();
  return fmt::format("{}{}{}, call {}", name_of(call.kind), items, argument_text(call),
                     call.number);
}

void require_same_call(const Call& mine, int rank, const Call& theirs, int their_rank) {
  if (mine == theirs) return;
  throw Error(ExitCode::kDisagree, "dist.mpi",
              fmt::format("ranks make different calls: rank {}: {}; rank {}: {}. All ranks need "
                          "the same run file, data and program",
                          rank, text_of(mine), their_rank, text_of(theirs)));
}

}  // namespace lockstep::dist::mpi
