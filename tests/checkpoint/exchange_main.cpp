// The C++ side of tensorflow_oracle.py.
//   checkpoint_exchange write DIR      a 2-rank save DIR/model.ckpt-7 of the state below
//   checkpoint_exchange show PREFIX    checkpoint/inspect.h, JSON with values
//   checkpoint_exchange verify PREFIX  exit 1 with the defects if there are any
#include <cstdio>
#include <string>

#include <ATen/ATen.h>

#include "checkpoint/inspect.h"
#include "checkpoint/saver.h"
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

int print(const lockstep::checkpoint::Answer& answer) {
  std::fputs(answer.text.c_str(), stdout);
  return answer.ok ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const std::string verb = argv[1];
  if (verb == "write") return write(argv[2]);
  if (verb == "show")
    return print(lockstep::checkpoint::show_save(argv[2], {.json = true, .values = true}));
  if (verb == "verify") return print(lockstep::checkpoint::verify_saves(argv[2], {}));
  return 64;
}
