#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "base/tensors/state_list.h"
#include "checkpoint/save/saver.h"
#include "tests/support/thread_world.h"

namespace lockstep::checkpoint::tests {

/// A new folder, gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "checkpoint_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string prefix() const { return *this / "model.ckpt"; }

 private:
  std::filesystem::path path_;
};

/// A small run's state: values follow from `seed`, forms do not.
struct SmallState {
  explicit SmallState(int64_t seed = 0)
      : weight(at::arange(1500, at::kFloat).reshape({30, 50}) + seed),
        moment(at::arange(1500, at::kFloat).reshape({30, 50}) * 0.5 + seed),
        bias((at::arange(7, at::kDouble) + seed)),
        step(seed),
        text("seed " + std::to_string(seed % 10)) {}

  StateList list() {
    return {{"model/weight", weight},
            {"optimizer/momentum/weight", moment},
            {"model/bias", bias},
            {"_lockstep/step", view_of(&step)},
            {"_lockstep/note", {}, &text}};
  }

  bool operator==(const SmallState& other) const {
    return at::equal(weight, other.weight) && at::equal(moment, other.moment) &&
           at::equal(bias, other.bias) && step == other.step && text == other.text;
  }

  at::Tensor weight, moment, bias;
  int64_t step;
  std::string text;
};

/// A save of SmallState(seed) by `world_size` ranks under number `seed`; rank 0's result.
inline SaveResult save_small(SaverOptions options, int64_t seed, int world_size = 1) {
  SaveResult result;
  lockstep::tests::run_ranks(world_size, [&](dist::Communicator& control) {
    SmallState state(seed);
    const SaveResult own = Saver(options, control).save(state.list(), seed);
    if (control.rank() == 0) result = own;
  });
  return result;
}

inline std::string bytes_of(const std::string& path) { return files::read(path); }
inline void put_bytes(const std::string& path, const std::string& bytes) {
  files::Writer file(path);
  file.append(bytes);
  file.close();
}

}  // namespace lockstep::checkpoint::tests
