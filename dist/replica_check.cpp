// Two phases: digests of all tensors in one all_reduce; if some differ, the first one is examined
// with further collectives. All ranks see the same digests, so all take the same path.
#include "dist/replica_check.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {
namespace {

std::vector<int64_t> digests_of(const std::vector<NamedTensor>& tensors) {
  std::vector<int64_t> digests;
  for (const auto& [name, tensor] : tensors)
    digests.push_back(tensor_digest(tensor) ^ fnv1a64(name));
  return digests;
}

std::string signature(const NamedTensor& named) {
  return fmt::format("{} {} [{}]", named.name, c10::toString(named.tensor.scalar_type()),
                     fmt::join(named.tensor.sizes(), ", "));
}

/// Formats "rank 1 from ranks 0, 2, 3": the ranks that differ from rank 0, then those that do not.
std::string sides_text(const std::vector<std::string>& digest_texts) {
  std::vector<int> as_first, other;
  for (int rank = 0; rank < static_cast<int>(digest_texts.size()); ++rank)
    (digest_texts[rank] == digest_texts[0] ? as_first : other).push_back(rank);
  return fmt::format("{} from {}", ranks_text(other), ranks_text(as_first));
}

/// Returns the first item in which two contiguous tensors differ; their number of items if none.
int64_t first_difference(const at::Tensor& one, const at::Tensor& other) {
  const auto* bytes = static_cast<const std::byte*>(one.const_data_ptr());
  const auto* others = static_cast<const std::byte*>(other.const_data_ptr());
  const auto place = std::mismatch(bytes, bytes + one.nbytes(), others).first - bytes;
  return place / static_cast<int64_t>(one.itemsize());
}

/// Returns the first item in which any rank differs from rank 0.
int64_t first_differing_item(Communicator& comm, const at::Tensor& host) {
  // A copy, which the broadcast overwrites; as bytes, whatever the dtype.
  const at::Tensor there = host.view(-1).view(at::kByte).clone().to(comm.device());
  comm.broadcast(there, 0);
  const at::Tensor of_rank_0 = there.cpu().view(host.scalar_type());
  return min_of(comm, first_difference(host, of_rank_0));
}

std::string index_text(at::IntArrayRef sizes, int64_t item) {
  std::vector<int64_t> index_by_dimension(sizes.size());
  for (size_t i = sizes.size(); i-- > 0; item /= sizes[i]) index_by_dimension[i] = item % sizes[i];
  return fmt::format("[{}]", fmt::join(index_by_dimension, ", "));
}

/// Formats a value with enough digits to tell any two values apart. NaNs print alike, so their
/// bytes are added.
std::string value_text(const at::Tensor& host, int64_t item) {
  if (host.is_complex()) {
    const at::Tensor parts = at::view_as_real(host).view(-1);
    return fmt::format("({}, {})", value_text(parts, 2 * item), value_text(parts, 2 * item + 1));
  }
  const at::Tensor value = host.view(-1)[item];
  if (!at::isFloatingType(host.scalar_type())) return fmt::format("{}", value.item<int64_t>());
  const double number = value.item<double>();
  const std::string text = host.scalar_type() == at::kDouble
                               ? fmt::format("{}", number)
                               : fmt::format("{}", static_cast<float>(number));
  if (!std::isnan(number)) return text;
  const auto* bytes =
      static_cast<const unsigned char*>(host.const_data_ptr()) + item * host.itemsize();
  return fmt::format("{} (bytes {:02x})", text, fmt::join(bytes, bytes + host.itemsize(), " "));
}

/// Formats "first at item 17 [1, 1, 2]: ranks 0, 2, 3: 1; rank 1: 0".
std::string first_difference_text(Communicator& comm, const at::Tensor& host) {
  const int64_t item = first_differing_item(comm, host);
  check(item < host.numel(), "digests differ of equal tensors");
  const std::string values = texts_by_ranks(gather_texts(comm, value_text(host, item)));
  return fmt::format("first at item {} {}: {}", item, index_text(host.sizes(), item), values);
}

}  // namespace

void require_equal_replicas(Communicator& comm, std::string_view what,
                            const std::vector<NamedTensor>& tensors) {
  const std::vector<int64_t> digests_T = digests_of(tensors);
  const std::vector<size_t> differing_tensors = differing_words(comm, digests_T);
  if (differing_tensors.empty()) return;

  const size_t index = differing_tensors.front();
  const NamedTensor& named = tensors[index];
  // Equal names, dtypes and shapes first: without them the bytes below could not be compared.
  require_equal(comm, fmt::format("{}, tensor {}", what, index), signature(named));
  const std::string sides = sides_text(gather_texts(comm, std::to_string(digests_T[index])));
  const std::string place = first_difference_text(comm, named.tensor.detach().cpu().contiguous());
  const size_t num_differing = differing_tensors.size();
  throw Error(
      ExitCode::kDisagree, "dist",
      fmt::format("{} of {} differs: {}; {} ({} of {} tensors differ{})", what, named.name, sides,
                  place, num_differing, tensors.size(), num_differing == 1 ? "s" : ""))
      .everywhere();
}

std::string difference_text(const at::Tensor& is, const at::Tensor& should_be) {
  const int64_t item = first_difference(is, should_be);
  check(item < is.numel(), "the tensors are equal");
  return fmt::format("item {} {}: {} instead of {}", item, index_text(is.sizes(), item),
                     value_text(is, item), value_text(should_be, item));
}

void require_equal_state(Communicator& comm, std::string_view what, const StateList& state) {
  if (comm.world_size() == 1) return;
  std::vector<NamedTensor> tensors;
  std::string texts;
  for (const StateEntry& entry : state) {
    if (entry.tensor.defined() && !entry.held)
      tensors.push_back({entry.key, entry.tensor.detach()});
    if (entry.text != nullptr) texts += fmt::format("{}: {}\n", entry.key, *entry.text);
  }
  // Texts first: they are small, and settings explain differences of tensors.
  require_equal(comm, what, texts);
  require_equal_replicas(comm, what, tensors);
}

}  // namespace lockstep::dist
