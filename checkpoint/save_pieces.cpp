#include "checkpoint/save_pieces.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/object_graph.h"
#include "checkpoint/shard_plan.h"
#include "checkpoint/state_names.h"
#include "checkpoint/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

void require_storable(const StateEntry& entry) {
  check(entry.tensor.defined() != (entry.text != nullptr),
        "state '" + entry.key + "' is not one tensor or one text");
  if (entry.text != nullptr) return;
  if (entry.tensor.layout() != at::kStrided || !type_number(entry.tensor.scalar_type()))
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("tensor '{}' is {} ({}), for which TensorFlow's files have no form; "
                            "convert it before it is listed",
                            entry.key, c10::toString(entry.tensor.scalar_type()),
                            entry.tensor.layout() == at::kStrided ? "dense" : "not dense"))
        .everywhere();
}

}  // namespace

SavePieces::SavePieces(const StateList& state, int64_t number) : number_(number) {
  std::vector<std::string> keys;
  for (const StateEntry& entry : state) {
    require_storable(entry);
    keys.push_back(entry.key);
    list_.push_back({index_name(entry.key), entry.tensor, entry.text});
  }
  graph_ = object_graph(keys);
  list_.push_back({index_name(kCounterKey), view_of(&number_), nullptr});
  list_.push_back({std::string(kGraphName), {}, &graph_});
}

std::vector<int> SavePieces::owners(int world_size) const {
  std::vector<PlannedPiece> planned;
  for (const SavePiece& piece : list_)
    planned.push_back({piece.name, piece.text ? 0 : static_cast<int64_t>(piece.tensor.nbytes())});
  return plan_shards(planned, world_size);
}

std::string SavePieces::summary() const {
  std::string forms;
  for (const SavePiece& piece : list_)
    forms += piece.text ? fmt::format("{} string\n", piece.name)
                        : fmt::format("{} {} [{}]\n", piece.name,
                                      c10::toString(piece.tensor.scalar_type()),
                                      fmt::join(piece.tensor.sizes(), ", "));
  return fmt::format("save {}, {} tensors, sha256 of names and shapes {}", number_, list_.size(),
                     sha256_hex(forms));
}

}  // namespace lockstep::checkpoint
