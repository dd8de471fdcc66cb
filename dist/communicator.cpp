// Checks of arguments, which run before any message is sent; the communicators of one rank and of
// compared calls; agreements.
#include "dist/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"

namespace lockstep::dist {

// Argument checks that all backends share. They run before any message is sent.

constexpr std::array kSupported{at::kFloat, at::kDouble, at::kBFloat16,
                                at::kHalf,  at::kLong,   at::kByte};

void check_values(const at::Tensor& values, at::Device device) {
  check(values.defined() && values.is_contiguous(), "a collective needs a contiguous tensor");
  check(values.device() == device,
        fmt::format("a collective of {} got a tensor on {}", device.str(), values.device().str()));
  check(std::ranges::find(kSupported, values.scalar_type()) != kSupported.end(),
        fmt::format("no collective for dtype {}", c10::toString(values.scalar_type())));
}

void check_pieces(const at::Tensor& values_K, const at::Tensor& values_NK, int world_size,
                  at::Device device) {
  check_values(values_K, device);
  check_values(values_NK, device);
  check(values_K.scalar_type() == values_NK.scalar_type(), "pieces and whole differ in dtype");
  check(values_NK.numel() == values_K.numel() * world_size,
        fmt::format("{} items are not {} pieces of {}", values_NK.numel(), world_size,
                    values_K.numel()));
}

// SelfCommunicator: every collective is the identity, with the same argument checks as the other
// backends.

std::unique_ptr<Work> SelfCommunicator::all_reduce(at::Tensor values_K, ReduceOp) {
  check_values(values_K, device_);
  bytes_reduced_ += payload_bytes(values_K);
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> SelfCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, 1, device_);
  bytes_reduced_ += payload_bytes(values_NK);
  out_K.view(-1).copy_(values_NK.view(-1));
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> SelfCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, 1, device_);
  out_NK.view(-1).copy_(values_K.view(-1));
  return std::make_unique<DoneWork>();
}

void SelfCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device_);
  check(root == 0, "broadcast from a rank that does not exist");
}

std::unique_ptr<Communicator> SelfCommunicator::split(int color, int) {
  check(color >= 0, "split needs a color >= 0");
  return std::make_unique<SelfCommunicator>(device_);
}

// CheckedCommunicator: compares a text of each call over a second communicator before the call
// itself, so that a mismatch is an error instead of a hang.

static std::string text_of(std::string_view name, const at::Tensor& values) {
  return fmt::format("{} of {} {}", name, values.numel(), c10::toString(values.scalar_type()));
}

/// Names of all_reduce by ReduceOp.
constexpr std::array kReductions{"all_reduce (sum)", "all_reduce (min)", "all_reduce (max)"};

CheckedCommunicator::CheckedCommunicator(std::unique_ptr<Communicator> comm,
                                         std::unique_ptr<Communicator> comparison)
    : comm_(std::move(comm)), comparison_(std::move(comparison)) {}

void CheckedCommunicator::require_equal_calls(const std::string& call) {
  // The number distinguishes equal calls at different positions of the sequence.
  require_equal(*comparison_, fmt::format("collective {} of the gradients", ++num_calls_), call);
}

std::unique_ptr<Work> CheckedCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  require_equal_calls(text_of(kReductions.at(static_cast<size_t>(op)), values_K));
  return comm_->all_reduce(std::move(values_K), op);
}

std::unique_ptr<Work> CheckedCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  require_equal_calls(text_of("reduce_scatter", values_NK));
  return comm_->reduce_scatter(std::move(out_K), std::move(values_NK));
}

std::unique_ptr<Work> CheckedCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  require_equal_calls(text_of("all_gather", out_NK));
  return comm_->all_gather(std::move(out_NK), std::move(values_K));
}

void CheckedCommunicator::broadcast(at::Tensor values_K, int root) {
  require_equal_calls(text_of(fmt::format("broadcast from rank {}", root), values_K));
  comm_->broadcast(std::move(values_K), root);
}

void CheckedCommunicator::barrier() {
  require_equal_calls("barrier");
  comm_->barrier();
}

SharedMemory CheckedCommunicator::share_memory(int64_t num_bytes) {
  require_equal_calls(fmt::format("share_memory of {} bytes", num_bytes));
  return comm_->share_memory(num_bytes);
}

// Both communicators split in the same way, so that a part compares only its own ranks.
std::unique_ptr<Communicator> CheckedCommunicator::split(int color, int key) {
  require_equal_calls("split");
  auto part = comm_->split(color, key);
  return std::make_unique<CheckedCommunicator>(std::move(part), comparison_->split(color, key));
}

// Agreements go through comm.device(), so that NCCL works too. While ranks agree, one small
// all_reduce suffices; texts are exchanged only after a difference.

static at::Tensor byte_tensor(std::string_view text, int64_t num_bytes, at::Device device) {
  const at::Tensor host_K = at::zeros({num_bytes}, at::kByte);
  if (!text.empty()) std::memcpy(host_K.mutable_data_ptr(), text.data(), text.size());
  return host_K.to(device);
}

static std::string text_of(Communicator& comm, const at::Tensor& bytes_K) {
  const at::Tensor host_K = copy_to_host(comm, bytes_K);
  return {static_cast<const char*>(host_K.const_data_ptr()), host_K.nbytes()};
}

at::Tensor reduced_on_host(Communicator& comm, const at::Tensor& values_K, ReduceOp op) {
  const at::Tensor there_K = values_K.to(comm.device());
  comm.all_reduce(there_K, op)->wait();
  return copy_to_host(comm, there_K);
}

static int64_t reduced_one(Communicator& comm, int64_t value, ReduceOp op) {
  return reduced_on_host(comm, at::tensor(at::IntArrayRef(&value, 1)), op).item<int64_t>();
}

std::vector<size_t> differing_words(Communicator& comm, at::IntArrayRef words_K) {
  // ~ reverses order, so ~max(~v) is the smallest v; unlike -, ~ cannot overflow.
  std::vector<int64_t> both_2K = words_K.vec();
  for (const int64_t word : words_K) both_2K.push_back(~word);
  const at::Tensor most_2K = reduced_on_host(comm, at::tensor(both_2K), ReduceOp::kMax);
  const int64_t* most = most_2K.const_data_ptr<int64_t>();
  std::vector<size_t> indices;
  for (size_t i = 0; i < words_K.size(); ++i)
    if (most[i] != ~most[words_K.size() + i]) indices.push_back(i);
  return indices;
}

static std::string broadcast_from(Communicator& comm, std::string_view text, int root) {
  const auto own_bytes = static_cast<int64_t>(text.size());
  const at::Tensor length_1 = at::tensor(at::IntArrayRef(&own_bytes, 1)).to(comm.device());
  comm.broadcast(length_1, root);
  const auto num_bytes = copy_to_host(comm, length_1).item<int64_t>();
  const bool is_root = comm.rank() == root;
  const at::Tensor bytes_K =
      byte_tensor(is_root ? text : std::string_view(), num_bytes, comm.device());
  comm.broadcast(bytes_K, root);
  return text_of(comm, bytes_K);
}

/// Returns the first position at which a text differs from that of rank 0.
static size_t first_difference(const std::vector<std::string>& texts) {
  size_t nearest = std::string::npos;
  for (const std::string& text : texts) {
    const auto [end, other_end] =
        std::mismatch(text.begin(), text.end(), texts[0].begin(), texts[0].end());
    if (end != text.end() || other_end != texts[0].end())
      nearest = std::min(nearest, static_cast<size_t>(end - text.begin()));
  }
  return nearest;
}

/// Returns about 100 bytes around `place` in one line; cuts fall between UTF-8 characters.
static std::string excerpt(const std::string& text, size_t place) {
  constexpr size_t kBefore = 40, kAfter = 60;
  const auto inside_character = [&](size_t i) {
    return i < text.size() && (text[i] & 0xC0) == 0x80;
  };
  // In UTF-8, bytes 10xxxxxx continue a character.
  size_t begin = place > kBefore ? std::min(place - kBefore, text.size()) : 0;
  size_t end = std::min(place + kAfter, text.size());
  while (inside_character(begin)) ++begin;
  while (inside_character(end)) ++end;
  std::string line = begin > 0 ? "..." : "";
  for (const char c : text.substr(begin, end - begin))
    line += c == '\n' ? std::string("\\n") : std::string(1, c);
  return line + (end < text.size() ? "..." : "");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    // Only three or more are joined.
    if (last - i < 2) last = i;
    parts.push_back(last == i ? std::to_string(ranks[i])
                              : fmt::format("{}-{}", ranks[i], ranks[last]));
    i = last + 1;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(parts, ", "));
}

std::string texts_by_ranks(const std::vector<std::string>& texts,
                           const std::function<std::string(const std::string&)>& shown) {
  std::vector<std::string> groups;
  for (auto first = texts.begin(); first != texts.end(); ++first) {
    // A group of equal texts is listed at its lowest rank.
    if (std::find(texts.begin(), first, *first) != first) continue;
    std::vector<int> ranks;
    for (auto other = first; other != texts.end(); ++other)
      if (*other == *first) ranks.push_back(static_cast<int>(other - texts.begin()));
    groups.push_back(fmt::format("{}: {}", ranks_text(ranks), shown(*first)));
  }
  return fmt::format("{}", fmt::join(groups, "; "));
}

bool all_equal(Communicator& comm, int64_t value) { return differing_words(comm, value).empty(); }

bool any_of(Communicator& comm, bool value) { return max_of(comm, value ? 1 : 0) == 1; }

int64_t min_of(Communicator& comm, int64_t value) {
  return reduced_one(comm, value, ReduceOp::kMin);
}
int64_t max_of(Communicator& comm, int64_t value) {
  return reduced_one(comm, value, ReduceOp::kMax);
}
int64_t sum_of(Communicator& comm, int64_t value) {
  return reduced_one(comm, value, ReduceOp::kSum);
}

// all_gather needs equal sizes, so the lengths come first and texts are padded to the longest.
std::vector<std::string> gather_texts(Communicator& comm, std::string_view text) {
  const auto num_ranks = static_cast<int64_t>(comm.world_size());
  const auto own_bytes = static_cast<int64_t>(text.size());
  const at::Tensor lengths_N = at::zeros({num_ranks}, at::kLong).to(comm.device());
  comm.all_gather(lengths_N, lengths_N.new_full({1}, own_bytes))->wait();
  const at::Tensor host_N = copy_to_host(comm, lengths_N);
  const int64_t* length = host_N.const_data_ptr<int64_t>();
  const int64_t most_bytes = *std::max_element(length, length + num_ranks);

  // K = most_bytes
  const at::Tensor all_NK = byte_tensor("", num_ranks * most_bytes, comm.device());
  comm.all_gather(all_NK, byte_tensor(text, most_bytes, comm.device()))->wait();
  const std::string all = text_of(comm, all_NK);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < num_ranks; ++rank)
    texts.push_back(all.substr(rank * most_bytes, length[rank]));
  return texts;
}

std::string broadcast_text(Communicator& comm, std::string_view text) {
  return broadcast_from(comm, text, 0);
}

// Digests instead of texts: the message has a fixed size, however long the texts are.
void require_equal(Communicator& comm, std::string_view what, std::string_view text) {
  const std::string digest = sha256_hex(text);
  std::array<int64_t, 8> words_8{};
  check(digest.size() == sizeof(words_8), "a SHA-256 has 64 hex digits");
  std::memcpy(words_8.data(), digest.data(), sizeof(words_8));
  if (differing_words(comm, words_8).empty()) return;

  // All ranks see the difference, so all take part in this second exchange.
  const std::vector<std::string> texts = gather_texts(comm, text);
  const auto shown = [place = first_difference(texts)](const std::string& one) {
    return excerpt(one, place);
  };
  throw Error(ExitCode::kDisagree, "dist",
              fmt::format("{} differs: {}", what, texts_by_ranks(texts, shown)))
      .everywhere();
}

void throw_if_any(Communicator& comm, const std::optional<Error>& fault) {
  const int64_t lowest = min_of(comm, fault ? comm.rank() : comm.world_size());
  if (lowest == comm.world_size()) return;
  const int root = static_cast<int>(lowest);
  const bool is_root = comm.rank() == root;
  const auto code =
      static_cast<ExitCode>(sum_of(comm, is_root ? static_cast<int64_t>(fault->code()) : 0));
  std::string text = broadcast_from(comm, is_root ? fault->what() : "", root);

  // what() is "[area] message"; the new Error adds the area again.
  std::string area = "dist";
  const size_t area_end = text.find("] ");
  if (text.starts_with('[') && area_end != std::string::npos) {
    area = text.substr(1, area_end - 1);
    text.erase(0, area_end + 2);
  }
  if (comm.world_size() > 1) text = fmt::format("rank {}: {}", root, text);
  throw Error(code, area, text).everywhere();
}

// Flattening by ATen's helpers. unflatten returns views, so take_apart() copies each part once.

at::Tensor joined(at::TensorList tensors, const at::TensorOptions& options) {
  std::vector<at::Tensor> converted;
  converted.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) converted.push_back(tensor.to(options));
  const at::Tensor joined_K = at::flatten_dense_tensors(converted);
  // A single tensor is not copied by flatten.
  return joined_K.is_alias_of(converted.front()) ? joined_K.clone() : joined_K;
}

void take_apart(const at::Tensor& joined_K, at::TensorList tensors) {
  const std::vector<at::Tensor> parts = at::unflatten_dense_tensors(joined_K, tensors);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].numel() > 0) tensors[i].copy_(parts[i]);
}

at::Tensor real_view(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

using Tensors = std::vector<at::Tensor>;

/// Returns the end of the message that begins at `begin`.
static size_t end_of_message(const Tensors& flat, size_t begin, int64_t message_bytes) {
  auto num_bytes = static_cast<int64_t>(flat[begin].nbytes());
  size_t end = begin + 1;
  for (; end < flat.size() && flat[end].scalar_type() == flat[begin].scalar_type(); ++end) {
    num_bytes += static_cast<int64_t>(flat[end].nbytes());
    if (num_bytes > message_bytes) break;
  }
  return end;
}

static void take_mean(Communicator& comm, const at::Tensor& values_K) {
  comm.all_reduce(values_K, ReduceOp::kSum)->wait();
  values_K.div_(comm.world_size());
}

void mean_over_ranks(Communicator& comm, const Tensors& tensors, int64_t message_bytes) {
  const at::NoGradGuard no_grad;
  Tensors flat;
  for (const at::Tensor& tensor : tensors)
    if (tensor.numel() > 0) flat.push_back(tensor.view({-1}));
  for (size_t begin = 0, end = 0; begin < flat.size(); begin = end) {
    end = end_of_message(flat, begin, message_bytes);
    // A large tensor is reduced in place, without copies.
    if (end == begin + 1) {
      take_mean(comm, flat[begin]);
      continue;
    }
    const at::TensorList together(&flat[begin], end - begin);
    const at::Tensor joined_K = joined(together, flat[begin].options());
    take_mean(comm, joined_K);
    take_apart(joined_K, together);
  }
}

void consolidate_state(Communicator& comm, const StateList& parts) {
  if (comm.world_size() == 1) return;
  for (const StateEntry& part : parts) {
    if (!part.tensor.defined()) continue;
    check(part.tensor.is_contiguous(), "state that is completed is contiguous: " + part.key);
    const at::Tensor bytes_B = part.tensor.detach().view(-1).view(at::kByte);
    // All but the owner have +0, so the bytewise maximum is the owner's value.
    comm.all_reduce(bytes_B, ReduceOp::kMax)->wait();
  }
  comm.settle();
}

}  // namespace lockstep::dist
