#include "train/step/audit.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/simd/bit_mask.h"
#include "base/trace.h"
#include "dist/replica_check.h"
#include "dist/tensor_math.h"
#include "train/step/training_pass.h"

// The first round compares digests. Only if some differ, a second round computes the samples again,
// on all ranks, and looks at values. All ranks have the same digests, so all take the same path.
namespace lockstep::train {
namespace {

/// Returns samples in memory of their own, without gaps.
data::Samples copied(const data::Samples& samples) {
  return data::mapped(samples, [](const at::Tensor& values) { return values.clone(); });
}

std::vector<at::Tensor*> tensors_of(data::Samples* samples) {
  std::vector<at::Tensor*> tensors{&samples->inputs_BX, &samples->targets_BY};
  for (at::Tensor& one : samples->more) tensors.push_back(&one);
  return tensors;
}

/// Describes a batch for room_for().
std::string header_of(const data::Batch& batch) {
  data::Samples samples = batch.samples;
  nlohmann::json tensors = nlohmann::json::array();
  for (const at::Tensor* tensor : tensors_of(&samples))
    tensors.push_back({{"type", static_cast<int>(tensor->scalar_type())},
                       {"sizes", tensor->sizes().vec()},
                       {"strides", tensor->strides().vec()}});
  return json_text(nlohmann::json{{"first_sample", batch.first_sample},
                                  {"rank", batch.rank},
                                  {"names", samples.names},
                                  {"tensors", tensors}});
}

/// Returns a batch of this header without values; of the same global batch as `like`.
data::Batch room_for(const std::string& header, const data::Batch& like) {
  const auto facts = nlohmann::json::parse(header);
  data::Batch batch{.global_num_samples = like.global_num_samples,
                    .first_sample = facts.at("first_sample"),
                    .rank = facts.at("rank")};
  const nlohmann::json& tensors = facts.at("tensors");
  batch.samples.names = facts.at("names");
  batch.samples.more.resize(tensors.size() - 2);
  const std::vector<at::Tensor*> rooms = tensors_of(&batch.samples);
  for (size_t i = 0; i < rooms.size(); ++i)
    *rooms[i] = at::empty_strided(
        tensors[i].at("sizes").get<std::vector<int64_t>>(),
        tensors[i].at("strides").get<std::vector<int64_t>>(),
        at::TensorOptions(static_cast<at::ScalarType>(tensors[i].at("type").get<int>())));
  return batch;
}

/// State of a user's network that its own code may change in forward: its buffers. Parameters
/// cannot be restored, since a rank may have no room for a second copy.
class UserState {
 public:
  explicit UserState(model::Model& network) : network_(network) {
    for (const at::Tensor& tensor : buffers()) before_.push_back(tensor.clone());
    for (const Param& param : network_.params()) versions_.push_back(param.tensor._version());
  }

  /// Restores the buffers. Returns the reason if that is not possible.
  std::optional<Error> restore() const {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> now = buffers();
    const ParamTable& params = network_.params();
    for (size_t i = 0; i < params.size(); ++i)
      if (params[i].tensor._version() != versions_[i])
        return refusal("writes the trained parameter " + params[i].name);
    if (now.size() != before_.size()) return refusal("adds or removes buffers");
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i].sizes() != before_[i].sizes() || now[i].dtype() != before_[i].dtype())
        return refusal("changes the shape or type of a buffer");
      // Only what has changed: a write would count as a change of its own (MovedBuffers).
      if (!at::equal(now[i], before_[i])) now[i].copy_(before_[i]);
    }
    return std::nullopt;
  }

 private:
  std::vector<at::Tensor> buffers() const {
    std::vector<at::Tensor> tensors;
    for (const model::Buffer& buffer : network_.buffers())
      if (buffer.moved_by_forward) tensors.push_back(buffer.tensor);
    for (const model::Buffer& buffer : network_.unsaved_buffers()) tensors.push_back(buffer.tensor);
    return tensors;
  }
  static Error refusal(const std::string& what) {
    return Error(ExitCode::kConfig, "audit",
                 "run.audit_every computes samples twice, which this network cannot repeat: its "
                 "forward " +
                     what);
  }

  model::Model& network_;
  std::vector<at::Tensor> before_;
  std::vector<uint32_t> versions_;  ///< by parameter
};

}  // namespace

Audit::Audit(const TrainerParts& parts, TrainingPass& pass, std::vector<StepPart*> forward_parts)
    : parts_(parts), pass_(pass), forward_parts_(std::move(forward_parts)) {}

bool Audit::is_due() const {
  return parts_.audit_every > 0 && (parts_.clock.step + 1) % parts_.audit_every == 0;
}

/// Returns the rank whose samples `rank` computes in this audit.
int Audit::others_rank(int rank) const {
  const int num_ranks = parts_.control.world_size();
  if (num_ranks == 1) return rank;
  const int64_t audit = (parts_.clock.step + 1) / parts_.audit_every;
  const auto distance = static_cast<int>(1 + audit % (num_ranks - 1));
  return (rank + distance) % num_ranks;
}

/// Returns the root's batch. headers: header_of() of all ranks. Collective.
data::Batch Audit::sent_by(int root, const data::Batch& own,
                           const std::vector<std::string>& headers) const {
  data::Batch batch =
      parts_.control.rank() == root ? own : room_for(headers[static_cast<size_t>(root)], own);
  for (const at::Tensor* tensor : tensors_of(&batch.samples))
    if (tensor->numel() > 0)
      parts_.control.broadcast(tensor->as_strided({tensor->numel()}, {1}).view(at::kByte), root);
  return batch;
}

void Audit::compute(const data::Batch& batch, const data::Batch& own, double weight) {
  std::optional<UserState> state;
  if (parts_.model.runs_user_code()) state.emplace(parts_.model);
  metrics::PhaseSeconds unused;
  (void)parts_.mode.compute_gradients(batch, {.weight = weight, .phases = &unused}, pass_);
  if (state) dist::throw_if_any(parts_.control, state->restore());
  for (StepPart* part : forward_parts_) {
    part->end_step(StepEnd::kLeftOut, batch.samples.targets_BY.size(0));
    part->begin_step();
  }
  if (parts_.tensors != nullptr)
    parts_.tensors->begin(own.samples.inputs_BX, own.samples.targets_BY);
}

void Audit::compute_others(data::Batch* own, double weight) {
  const trace::Span span("audit");
  own->samples = copied(own->samples);
  trained_.clear();
  for (const FlatBuffer& buffer : parts_.flat_params.buffers())
    for (const FlatSlice& slice : buffer.slices)
      if (!buffer.frozen) trained_.push_back(slice.param);
  std::ranges::sort(trained_);

  const int rank = parts_.control.rank();
  const std::vector<std::string> headers = dist::gather_texts(parts_.control, header_of(*own));
  data::Batch others = *own;
  for (int root = 0; root < parts_.control.world_size(); ++root) {
    data::Batch batch = sent_by(root, *own, headers);
    if (root == others_rank(rank)) others = std::move(batch);
  }
  compute(others, *own, weight);
  others_P_ = digests();
}

/// Returns a copy of a parameter's gradient on the host; +0 where it is pruned, since the buffers
/// may hold anything there (dist::Dropped).
at::Tensor Audit::gradient_of(int64_t param) const {
  const at::NoGradGuard no_grad;
  at::Tensor gradient = parts_.flat_params.params()[static_cast<size_t>(param)].tensor.grad();
  gradient = gradient.to(at::kCPU, gradient.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                 .contiguous();
  const recal::MaskTable& masks = parts_.recipe.masks();
  if (masks.covers(param) && masks.of(param).num_pruned > 0)
    zero_pruned(gradient.mutable_data_ptr(), masks.of(param).kept_bits.const_data_ptr<uint8_t>(),
                gradient.numel(), static_cast<int>(gradient.itemsize()));
  return gradient;
}

at::Tensor Audit::digests() const {
  parts_.reducer.settle();
  std::vector<int64_t> digests_P;
  for (const int64_t param : trained_) digests_P.push_back(dist::tensor_digest(gradient_of(param)));
  return at::tensor(digests_P, at::kLong);
}

/// Returns the digests of all ranks [N, P]. Collective.
at::Tensor Audit::from_all_ranks(const at::Tensor& digests_P) const {
  const at::Tensor all_NP =
      at::empty({parts_.control.world_size(), digests_P.numel()}, digests_P.options());
  parts_.control.all_gather(all_NP.view(-1), digests_P)->wait();
  return all_NP;
}

void Audit::compare(const data::Batch& own, double weight) {
  const trace::Span span("audit");
  const int64_t num_params = static_cast<int64_t>(trained_.size());
  const at::Tensor all_NP = from_all_ranks(at::cat({digests(), others_P_}));
  const int64_t* const all = all_NP.const_data_ptr<int64_t>();
  const auto of_own = [&](int rank, int64_t i) { return all[2 * num_params * rank + i]; };
  const auto of_other = [&](int rank, int64_t i) {
    return all[2 * num_params * rank + num_params + i];
  };
  for (int auditor = 0; auditor < parts_.control.world_size(); ++auditor) {
    const int owner = others_rank(auditor);
    for (int64_t i = 0; i < num_params; ++i)
      if (of_own(owner, i) != of_other(auditor, i))
        examine(owner, trained_[static_cast<size_t>(i)],
                {{owner, of_own(owner, i), false}, {auditor, of_other(auditor, i), false}}, own,
                weight);
  }
  if (!std::exchange(has_passed_, true) && parts_.control.rank() == 0)
    log::info("audit", fmt::format("step {}: each rank has computed the gradients of another one's "
                                   "samples, to the same bits; only differences are logged further",
                                   parts_.clock.step + 1));
}

void Audit::examine(int owner, int64_t param, const std::vector<Finding>& first,
                    const data::Batch& own, double weight) {
  const int num_ranks = parts_.control.world_size();
  const at::Tensor own_gradient = gradient_of(param);  // of `owner`'s samples on `owner` only
  const std::vector<std::string> headers = dist::gather_texts(parts_.control, header_of(own));
  compute(sent_by(owner, own, headers), own, weight);

  std::vector<Finding> findings = first;
  const int64_t digest = dist::tensor_digest(gradient_of(param));
  const at::Tensor again_N = from_all_ranks(at::tensor({digest}, at::kLong));
  for (int i = 0; i < num_ranks; ++i)
    findings.push_back({i, again_N.const_data_ptr<int64_t>()[i], true});
  judge(owner, param, findings, own_gradient);
}

/// findings: the first two are of the first round.
void Audit::judge(int owner, int64_t param, const std::vector<Finding>& findings,
                  const at::Tensor& own_gradient) {
  const Finding &first = findings[0], &second = findings[1];
  std::map<int64_t, size_t> votes;
  for (const Finding& one : findings) ++votes[one.digest];
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
  const auto as_many =
      std::ranges::count(votes, most->second, [](const auto& vote) { return vote.second; });
  const std::vector<std::string> places = dist::gather_texts(parts_.control, parts_.place);
  const auto named = [&](int which) {
    return fmt::format("rank {} ({})", which, places[static_cast<size_t>(which)]);
  };
  const std::string start = fmt::format("the audit of step {} found ", parts_.clock.step + 1);
  const std::string& tensor = parts_.flat_params.params()[static_cast<size_t>(param)].name;
  // A processor that is right finds its result again, so one of the first two comes again.
  if (std::ranges::none_of(findings, [&](const Finding& one) {
        return one.is_repeated && (one.digest == first.digest || one.digest == second.digest);
      }))
    throw Error(ExitCode::kConfig, "audit",
                fmt::format("{}that the network does not repeat its results: its gradient of {} "
                            "from the same samples differs each time. Does forward keep a counter "
                            "or a generator in Python? Keep its state in buffers, or set "
                            "run.audit_every to 0",
                            start, tensor))
        .everywhere();
  if (as_many > 1)
    throw Error(ExitCode::kDisagree, "audit",
                fmt::format("{}that {} and {} compute different gradients of {} from the same "
                            "samples, each time. No update was made with them. Test both hosts, or "
                            "start with more ranks, of which a majority tells who is wrong",
                            start, named(first.rank), named(second.rank), tensor))
        .everywhere();
  const auto is_wrong = [&](const Finding& one) { return one.digest != most->first; };
  const Finding& wrong = *std::ranges::find_if(findings, is_wrong);
  const bool repeats = std::ranges::any_of(findings, [&](const Finding& one) {
    return one.is_repeated && one.rank == wrong.rank && is_wrong(one);
  });
  const int right = std::ranges::find_if(findings, [&](const Finding& one) {
                      return one.is_repeated && !is_wrong(one);
                    })->rank;
  // A transient fault in another rank's samples leaves no values: they have been overwritten.
  const bool has_values = repeats || &wrong == &findings.front();
  const std::string values =
      has_values ? difference(wrong.rank, right, repeats ? gradient_of(param) : own_gradient, param)
                 : "values not kept";
  throw Error(ExitCode::kDisagree, "audit",
              fmt::format("{}wrong arithmetic: {} computed another gradient of {} than the other "
                          "ranks from the samples of rank {} ({}); computed again, it was {}. {}",
                          start, named(wrong.rank), tensor, owner, values,
                          repeats ? "wrong again" : "right",
                          "No update was made with it. Take its processor out of use and start "
                          "again: the run resumes from its last checkpoint"))
      .everywhere();
}

/// Formats the first item in which the gradient of rank `wrong` differs from that of rank `right`.
/// Collective.
std::string Audit::difference(int wrong, int right, const at::Tensor& wrong_gradient,
                              int64_t param) const {
  const at::Tensor is = wrong_gradient.clone(), should_be = gradient_of(param);
  parts_.control.broadcast(is.view(-1).view(at::kByte), wrong);
  parts_.control.broadcast(should_be.view(-1).view(at::kByte), right);
  return dist::difference_text(is, should_be);
}

}  // namespace lockstep::train
