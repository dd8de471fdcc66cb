#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"

/// Helpers over a Communicator: agreements between ranks, joined tensors, means, sharded state.
namespace lockstep::dist {

// Agreements between ranks. Every function but ranks_text() is collective and returns the same
// answer on every rank. Meant for the control communicator: small messages, outside of a step.

/// True if all N ranks passed the same value. Costs one all_reduce of two int64.
bool all_equal(Communicator& comm, int64_t value);

/// True if any rank passed true.
bool any_of(Communicator& comm, bool value);

int64_t min_of(Communicator& comm, int64_t value);
int64_t max_of(Communicator& comm, int64_t value);
int64_t sum_of(Communicator& comm, int64_t value);

/// Returns every rank's text, by rank. Texts may differ in length.
std::vector<std::string> gather_texts(Communicator& comm, std::string_view text);

/// Returns rank 0's bytes on every rank.
std::string broadcast_text(Communicator& comm, std::string_view text);

/// Throws Error(kDisagree).everywhere() on every rank unless all passed the same text. The message
/// names `what`. For each group of ranks it quotes the text around the first difference: "binary
/// differs: rank 0: 0.1.0; ranks 1, 2: 0.2.0". Costs one all_reduce of 128 bytes while texts are
/// equal, however long they are.
void require_equal(Communicator& comm, std::string_view what, std::string_view text);

/// Turns one rank's fault into an error of all ranks. If any rank passes an error, every rank
/// throws the error of the lowest such rank, marked everywhere(). Code and area are kept; "rank 1:
/// " is put before the message if N > 1. Not for faults of the communicator itself, which can carry
/// no more messages.
void throw_if_any(Communicator& comm, const std::optional<Error>& fault);

/// Formats ranks for messages: "rank 3", "ranks 0, 2", "ranks 1-4, 7". Ascending, not empty.
std::string ranks_text(const std::vector<int>& ranks);

/// Runs a part that every rank does alone and that sends nothing. If it throws on some rank
/// (anything derived from std::exception), all ranks throw the error of the lowest such rank.
template <typename Part>
auto on_all_ranks(Communicator& comm, const Part& part) {
  std::optional<Error> fault;
  std::optional<decltype(part())> result;
  try {
    result.emplace(part());
  } catch (const Error& error) {
    fault = error;
  } catch (const std::exception& error) {
    fault = Error(ExitCode::kBug, "bug", error.what());
  }
  throw_if_any(comm, fault);
  return std::move(*result);
}

// Tensors, over any communicator.

/// Concatenates the tensors' elements into a new tensor [K] with these options (type, device), for
/// one message instead of many. At least one tensor.
at::Tensor joined(at::TensorList tensors, const at::TensorOptions& options);
/// Copies the parts of joined() back into the tensors, of any strides.
void take_apart(const at::Tensor& joined_K, at::TensorList tensors);

/// Returns a view of the tensor that ranks can add: a complex tensor as pairs of real numbers.
at::Tensor real_view(const at::Tensor& tensor);

/// Replaces each tensor by its mean over the N ranks, in place: the communicator's sum, divided by
/// N. Small neighbours of one dtype share a message of up to message_bytes, which changes no bit of
/// the result. Contiguous float tensors on comm.device(), of any shape. Shapes, dtypes and order
/// are equal on all ranks. Collective.
void mean_over_ranks(Communicator& comm, const std::vector<at::Tensor>& tensors,
                     int64_t message_bytes);

/// Consolidates sharded state: afterwards every rank has all elements. Required before sharded
/// state is saved or sharded in another way.
///
/// Before the call each element is, on each rank, either its value or +0 (all bits 0). The ranks
/// that have its value have the same one. Complete tensors stay as they are. Texts are ignored.
/// Method: the maximum of each byte over the ranks, so NaN and -0 keep their bits.
///
/// Collective: the same list on all ranks, tensors contiguous and on comm.device(). One all_reduce
/// per tensor, in place. On return the state is complete, on a device too.
void consolidate_state(Communicator& comm, const StateList& parts);

}  // namespace lockstep::dist
