// The C++ side of tensorflow_oracle.py.
//   checkpoint_exchange write DIR      a 2-rank save DIR/model.ckpt-7 of the state below
//   checkpoint_exchange write_slices DIR   a 2-rank save DIR/model.ckpt-8 of tensors that the ranks
//                                      divide, also inside of rows
//   checkpoint_exchange write_boxes DIR    DIR/model.ckpt-9 with tensors cut along any dimension
//   checkpoint_exchange show PREFIX    checkpoint/tools/inspect.h, JSON with values
//   checkpoint_exchange verify PREFIX  exit 1 with the defects if there are any
#include <cstdio>
#include <string>

#include <ATen/ATen.h>

#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/tools/inspect.h"
#include "tests/checkpoint/bundle/sliced_save.h"
#include "tests/support/thread_world.h"

namespace {

using lockstep::StateList;

/// Every type that a save can hold; tensorflow_oracle.py makes the same values with NumPy.
StateList every_type() {
  StateList state;
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat,
        at::kComplexDouble})
    state.push_back({"_lockstep/types/" + std::string(c10::toString(type)),
                     (at::arange(6) % 4).reshape({2, 3}).to(type)});
  return state;
}

StateList state_of(std::string* text) {
  StateList state = every_type();
  state.push_back(
      {"model/blocks/0/conv/weight", at::arange(5000, at::kFloat).reshape({50, 100}) / 7});
  state.push_back({"model/blocks/0/conv/bias", at::full({50}, -1.5, at::kFloat)});
  state.push_back(
      {"model/head/weight", at::arange(12, at::kDouble).reshape({3, 4}).t()});  // not contiguous
  state.push_back({"model/empty", at::zeros({0, 3}, at::kFloat)});
  state.push_back({"optimizer/v1.0/step", at::scalar_tensor(41, at::kLong)});
  state.push_back({"_lockstep/config", {}, text});
  return state;
}

int write(const std::string& dir) {
  lockstep::tests::run_ranks(2, [&](lockstep::dist::Communicator& control) {
    std::string text = "name: digits\n\xc3\xa9";
    lockstep::checkpoint::Saver saver({.prefix = dir + "/model.ckpt"}, control);
    saver.save(state_of(&text), 7);
  });
  return 0;
}

/// The same values as tensorflow_oracle.py's sliced_values().
at::Tensor numbers(const std::vector<int64_t>& shape, at::ScalarType type) {
  return (at::arange(c10::multiply_integers(shape)) % 97).reshape(shape).to(type);
}

/// One to four dimensions, and each type that TensorFlow reads in slices.
StateList sharded_state(int rank) {
  StateList state = {{"model/one", numbers({1001}, at::kFloat)},
                     {"model/long", numbers({20'000}, at::kFloat)},  // places of 3 bytes in keys
                     {"model/two", numbers({37, 29}, at::kFloat)},
                     {"model/three", numbers({5, 7, 11}, at::kDouble)},
                     {"optimizer/m/four", numbers({3, 4, 5, 6}, at::kFloat)}};
  for (const lockstep::StateEntry& entry : every_type())
    if (lockstep::checkpoint::can_be_sliced(
            lockstep::checkpoint::type_number(entry.tensor.scalar_type()).value()))
      state.push_back(entry);
  for (lockstep::StateEntry& entry : state) {
    const int64_t n = entry.tensor.numel(), cut = n / 3 + 1;  // inside of a row
    entry.held = rank == 0 ? std::vector<lockstep::ElementRange>{{0, cut}, {n - 1, n}}
                           : std::vector<lockstep::ElementRange>{{cut, n - 1}};
  }
  state.push_back({"model/whole", numbers({8, 8}, at::kFloat)});
  return state;
}

int write_slices(const std::string& dir) {
  lockstep::tests::run_ranks(2, [&](lockstep::dist::Communicator& control) {
    lockstep::checkpoint::Saver saver({.prefix = dir + "/model.ckpt", .min_cut_bytes = 1}, control);
    saver.save(sharded_state(control.rank()), 8);
  });
  return 0;
}

int write_boxes(const std::string& dir) {
  using namespace lockstep::checkpoint;
  tests::SaveMaker maker(2);
  const auto add = [&](const char* key, const std::vector<int64_t>& shape,
                       const std::vector<TensorBox>& boxes) {
    maker.add_sliced(index_name(key), numbers(shape, at::kFloat), boxes);
  };
  add("model/rows", {10, 4}, tests::cut_along({10, 4}, 0, {3, 3, 4}));
  add("model/columns", {10, 4}, tests::cut_along({10, 4}, 1, {1, 3}));
  add("model/middle", {3, 6, 2}, tests::cut_along({3, 6, 2}, 1, {2, 2, 2}));
  add("model/pinwheel", {3, 3},
      {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}});
  maker.add(index_name(kCounterKey), at::scalar_tensor(9, at::kLong));
  maker.add_text(std::string(kGraphName),
                 object_graph({"model/rows", "model/columns", "model/middle", "model/pinwheel"}));
  maker.write(dir + "/model.ckpt-9");
  return 0;
}

int print(const lockstep::checkpoint::Answer& answer) {
  std::fputs(answer.text.c_str(), stdout);
  return answer.ok ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const std::string verb = argv[1];
  if (verb == "write") return write(argv[2]);
  if (verb == "write_slices") return write_slices(argv[2]);
  if (verb == "write_boxes") return write_boxes(argv[2]);
  if (verb == "show")
    return print(lockstep::checkpoint::show_save(argv[2], {.json = true, .values = true}));
  if (verb == "verify") return print(lockstep::checkpoint::verify_saves(argv[2], {}));
  return 64;
}
