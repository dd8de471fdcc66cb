// Optimizers on flat buffers against PyTorch's way in LibTorch (bench/peers/torch_updates.h), one
// thread: bench/optimizer [TYPE]; of all types, or of one
//   bench/optimizer time TYPE   "result MS": one step of ours alone, for bench/moments
//
// TYPE_int8 has moments in 8 bits; its peer has float32.
// Each line is a pair with the same gradients and the same numbers, timed in turn; medians over
// the pairs, in processor time of the one thread. Fused: one call for all tensors; its counts of
// steps are filled in before the clock starts. Foreach: torch.optim's operations on lists. Loop:
// operations on each tensor, where PyTorch has nothing.
// Packed: a fixed mask of 90 %, gradients stand dense, as the
// reducer leaves them; packing them is part of the time. Memory: the moments of 20 M weights, and
// what the process keeps resident, from forked processes that hold nothing else.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/simd/simd.h"
#include "bench/peers/torch_updates.h"
#include "bench/programs/pairs.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"

namespace lockstep::bench {
namespace {

constexpr double kKept = 0.1;
constexpr double kRate = 0.001;

/// A model without layers: matrices of one size.
struct Shape {
  int64_t num_tensors, num_rows, num_columns;
  int64_t num_each = num_rows * num_columns;

  int64_t num_weights() const { return num_tensors * num_each; }
};
constexpr Shape kLarge{32, 625, 1000};
constexpr Shape kMany{400, 50, 50};

bool is_in_8_bits(const std::string& type) { return type.ends_with("_int8"); }

/// The update rule of a type.
std::string rule_of(const std::string& type) { return type.substr(0, type.find("_int8")); }

optim::OptimizerOptions options_of(const std::string& type) {
  optim::OptimizerOptions options = optim::default_options(rule_of(type));
  if (is_in_8_bits(type)) options.state_dtype = "int8";
  options.learning_rate = kRate;
  return options;
}

ParamTable params_of(const Shape& shape) {
  ParamTable params;
  for (int64_t i = 0; i < shape.num_tensors; ++i)
    params.push_back({fmt::format("layer{}.weight", i),
                      at::randn({shape.num_rows, shape.num_columns}).set_requires_grad(true), true,
                      true});
  return params;
}

/// All tensors in buffers of up to 25 MB.
optim::BufferPlan plan_of(const Shape& shape) {
  constexpr int64_t kBufferElements = 25 * 1024 * 1024 / 4;
  optim::BufferPlan plan;
  int64_t room = 0;
  for (int64_t i = 0; i < shape.num_tensors; ++i) {
    if (room < shape.num_each) plan.emplace_back(), room = kBufferElements;
    plan.back().push_back(i);
    room -= shape.num_each;
  }
  return plan;
}

/// Ours: one optimizer over flat buffers.
struct Flat {
  Flat(const Shape& shape, const std::string& type)
      : params(params_of(shape)),
        flat_params(params, plan_of(shape), at::kCPU),
        optimizer(optim::make_optimizer(options_of(type), flat_params.buffers(), params)),
        rates(optim::initial_rates(options_of(type))) {
    for (FlatBuffer& buffer : flat_params.buffers()) buffer.grads_E.normal_();
  }

  void prune() {
    const at::NoGradGuard no_grad;
    for (size_t b = 0; b < flat_params.buffers().size(); ++b) {
      FlatBuffer& buffer = flat_params.buffers()[b];
      const at::Tensor kept = at::rand_like(buffer.values_E).lt(kKept);
      buffer.values_E.mul_(kept);
      buffer.grads_E.mul_(kept);
      std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(kept.numel())));
      const at::Tensor floats = kept.to(at::kFloat);
      keep_nonzero(floats.const_data_ptr(), kept.numel(), 4, bits.data());
      optimizer->set_kept(b, bits);
    }
  }
  void step() { optimizer->step(rates); }

  ParamTable params;
  optim::FlatParams flat_params;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::StepRates rates;
};

TorchUpdates torch_updates_of(const Flat& ours, const std::string& type) {
  std::vector<at::Tensor> values, grads;
  for (const Param& param : ours.params) {
    values.push_back(param.tensor.detach().clone());
    grads.push_back(param.tensor.grad().clone());
  }
  return {rule_of(type), kRate, std::move(values), std::move(grads)};
}

/// `is_rough`: the updates may differ by some percent on average.
void check_equal(const Flat& ours, const TorchUpdates& theirs, bool is_rough,
                 const std::string& what) {
  for (size_t i = 0; i < theirs.values().size(); ++i) {
    const at::Tensor values = ours.params[i].tensor.detach(), expected = theirs.values()[i];
    check(is_rough ? (values - expected).abs().mean().item<double>() < 0.1 * kRate
                   : at::allclose(values, expected, 1e-4, 1e-6),
          "the updates are not LibTorch's: " + what);
  }
}

void time_steps(const std::string& type, const std::string& shape_name, const Shape& shape,
                bool pruned, std::optional<double> goal) {
  const std::string what = fmt::format("{}, {}, {}", type, shape_name, pruned ? "90 %" : "dense");
  Flat ours(shape, type);
  if (pruned) ours.prune();
  TorchUpdates theirs = torch_updates_of(ours, type);
  for (int i = 0; i < 3; ++i) ours.step(), theirs.count(), theirs.step();
  check_equal(ours, theirs, is_in_8_bits(type), what);
  Contest contest{what, theirs.form(), goal};
  contest.ours = [&] { ours.step(); };
  contest.prepare_theirs = [&] { theirs.count(); };
  contest.theirs = [&] { theirs.step(); };
  contest.num_pairs = 15;
  print(contest, run(contest));
}

/// Times AdamW's rule on the values and gradients alone, with one block of moments in the cache:
/// what moments in 8 bits cannot be faster than.
void time_rule_alone() {
  Flat ours(kLarge, "adamw");
  std::vector<float> m(optim::kStateBlock, 0.1F), v(optim::kStateBlock, 0.1F);
  const optim::UpdateKernels& kernels = optim::update_kernels(fastest_simd_path());
  const optim::GroupRates rates{kRate, 0};
  const optim::rules::WeightDecay<float> decay(options_of("adamw"), rates);
  const optim::rules::Adam<float> rule(options_of("adamw"), rates, 5);
  const double ms = median_ms(
      9, [] {},
      [&] {
        for (const FlatBuffer& buffer : ours.flat_params.buffers())
          for (int64_t i = 0; i < buffer.values_E.numel(); i += optim::kStateBlock)
            kernels.of<optim::rules::Adam<float>>()(
                std::min(optim::kStateBlock, buffer.values_E.numel() - i),
                buffer.values_E.mutable_data_ptr<float>() + i,
                buffer.grads_E.mutable_data_ptr<float>() + i, m.data(), v.data(), decay, rule);
      });
  fmt::print("{:<32}{:>8.2f} ms   the limit of moments in 8 bits\n", "adamw, one block of moments",
             ms);
}

/// Times the agreement check and the saves with packed moments.
void time_state() {
  Flat ours(kLarge, "adam");
  ours.prune();
  ours.step();
  const double state_ms = median_ms(
      5, [&] { ours.step(); }, [&] { (void)ours.optimizer->state(); });
  const double step_ms = median_ms(
      5, [&] { (void)ours.optimizer->state(); }, [&] { ours.step(); });
  fmt::print("{:<32}{:>8.2f} ms   and {:.2f} ms for the next step, which packs again\n",
             "state() of packed moments", state_ms, step_ms);
}

double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

struct Memory {
  double slots_mb = 0, moments_mb = 0, training_mb = 0;
};

/// Measures resident memory in a child process: the bytes that the moments add, and the total
/// during training.
Memory memory_of(bool pruned, const std::string& type = "adam") {
  std::array<int, 2> ends{};
  check(pipe(ends.data()) == 0, "a pipe");
  const pid_t child = fork();
  check(child >= 0, "a process");
  if (child == 0) {
    at::set_num_threads(1);
    const double start_mb = resident_mb();
    Flat ours(kLarge, type);
    if (pruned) ours.prune();
    malloc_trim(0);  // what making the mask took
    const double before_mb = resident_mb();
    for (int i = 0; i < 3; ++i) ours.step();
    const Memory found{1e-6 * static_cast<double>(ours.optimizer->slot_bytes()),
                       resident_mb() - before_mb, resident_mb() - start_mb};
    const bool is_written = write(ends[1], &found, sizeof(found)) == sizeof(found);
    _exit(is_written ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  Memory found;
  check(read(ends[0], &found, sizeof(found)) == sizeof(found), "the child's figures");
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  return found;
}

void print_memory() {
  static constexpr double kGoal = 0.6, kGoalOf8Bits = 0.27;
  const Memory dense = memory_of(false), packed = memory_of(true),
               in_8_bits = memory_of(false, "adam_int8");
  const auto line = [](std::string_view what, double packed_mb, double dense_mb,
                       std::optional<double> goal) {
    const double share = packed_mb / dense_mb;
    fmt::print("{:<32}{:>8.1f} MB   {:<20}{:>8.1f} MB  {:>6.2f}x", what, packed_mb, "dense",
               dense_mb, share);
    if (goal) fmt::print("  goal <= {}x: {}", *goal, met(share <= *goal));
    fmt::print("\n");
  };
  line("memory of Adam's moments, 90 %", packed.slots_mb, dense.slots_mb, kGoal);
  line("  resident, by the system", packed.moments_mb, dense.moments_mb, kGoal);
  line("  values, gradients, moments", packed.training_mb, dense.training_mb, std::nullopt);
  line("memory of Adam's moments, int8", in_8_bits.slots_mb, dense.slots_mb, kGoalOf8Bits);
  line("  resident, by the system", in_8_bits.moments_mb, dense.moments_mb, kGoalOf8Bits);
}

std::string load_average() {
  std::string load = "?";
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

/// Prints the time of a step of ours.
void print_step_of(const std::string& type) {
  at::set_num_threads(1);
  at::manual_seed(1);
  Flat ours(kLarge, type);
  ours.step();
  fmt::print("result {}\n", median_ms(
                                9, [] {}, [&] { ours.step(); }));
}

void run_types(const std::vector<std::string>& types) {
  fmt::print("float32 weights, 1 thread, {} path, load {}\n", name_of(fastest_simd_path()),
             load_average());
  print_memory();  // first: threads do not survive a fork
  at::set_num_threads(1);
  at::manual_seed(1);
  for (const std::string& type : types) {
    const bool is_loop = type == "ftrl" || type == "lion";
    const double goal = is_in_8_bits(type) ? 1.5 : is_loop ? 2.0 : 1.0;
    time_steps(type, "20 M in 32", kLarge, false, goal);
    if (is_in_8_bits(type)) time_rule_alone();
    if (type != "sgd" && !is_in_8_bits(type))
      time_steps(type, "20 M in 32", kLarge, true, 1.2);  // it has no slots to pack
  }
  time_steps("adam", "1 M in 400", kMany, false, 0.95);
  time_steps("adam", "1 M in 400", kMany, true, 1.2);
  time_state();
  fmt::print("load {} after\n", load_average());
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::exit_code_of([&] {
    // The types that TorchUpdates knows.
    std::vector<std::string> types{"sgd",     "momentum", "adam",    "adamw", "adadelta",
                                   "adagrad", "ftrl",     "rmsprop", "lion",  "adamw_int8"};
    if (argc > 2) return lockstep::bench::print_step_of(argv[2]);
    if (argc > 1) types = {argv[1]};
    lockstep::bench::run_types(types);
  });
}
