// Saves and restores of 1 GB on demand: reads commands from standard input, answers each with one
// line of seconds. bench/checkpoint starts it beside its peers, so that both sides keep warm memory
// and take turns.
//
//   durable DIR    save into DIR; until it is committed
//   blocked DIR    a save beside one round of matrix products: "blocked round alone", seconds of
//   the
//                  caller inside begin() and wait_until_staged(), of the round, of one without a
//                  save
//   restore DIR    into place, checksums verified
//   probe DIR      the same bytes written past the page cache and synced, nothing else
//   size DIR       bytes of a save of weights and two moments: "dense sparse", masks keep 10 %
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>

#include "base/bit_mask.h"
#include "base/direct_writer.h"
#include "base/error.h"
#include "base/kept_memory.h"
#include "checkpoint/restore.h"
#include "checkpoint/saver.h"
#include "dist/self_communicator.h"

namespace {

using namespace lockstep;

constexpr int64_t kNumTensors = 32, kNumElements = 7'812'500;  // 1 GB of float32
constexpr int64_t kMatrix = 2048, kProducts = 10;              // one round, as forward and backward

template <typename Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

checkpoint::SaverOptions options_in(const std::string& dir, bool sparse = false) {
  return {.prefix = dir + "/model.ckpt", .keep_checkpoint_max = -1, .sparse = sparse};
}

class Bench {
 public:
  Bench() {
    for (int64_t i = 0; i < kNumTensors; ++i)
      state_.push_back({.key = "model/w" + std::to_string(i),
                        .tensor = at::randn({kNumElements}),
                        .steady = true});
  }

  void durable(const std::string& dir) {
    const checkpoint::SaveResult result = save(dir);
    std::printf("%f\n", result.seconds);
  }

  void blocked(const std::string& dir) {
    const double alone = seconds_of([&] { compute(); });
    saver(dir);
    double blocked = 0;
    const double round = seconds_of([&] {
      blocked += seconds_of([&] { saver_->begin(state_, 1); });
      compute();
      blocked += seconds_of([&] { saver_->wait_until_staged(); });
    });
    check(saver_->wait().ok, "the save failed");
    std::printf("%f %f %f\n", blocked, round, alone);
  }

  void restore(const std::string& dir) {
    std::printf("%f\n", seconds_of([&] { checkpoint::restore(dir + "/model.ckpt-1", state_); }));
  }

  void probe(const std::string& dir) {
    constexpr int64_t kBytes = kNumTensors * kNumElements * 4, kChunk = int64_t{4} << 20;
    const std::span<char> memory = probe_memory_.take((kBytes + 4095) / 4096 * 4096);
    if (!probed_) std::fill(memory.begin(), memory.end(), 1);
    probed_ = true;
    std::printf("%f\n", seconds_of([&] {
                  files::DirectWriter file(dir + "/probe", kBytes);
                  std::atomic<int64_t> next = 0;
                  const auto write = [&] {
                    const auto end = static_cast<int64_t>(memory.size());
                    for (int64_t at; (at = next.fetch_add(kChunk)) < end;)
                      file.write(at,
                                 memory.subspan(static_cast<size_t>(at),
                                                static_cast<size_t>(std::min(kChunk, end - at))));
                  };
                  std::thread other(write);
                  write();
                  other.join();
                  file.finish();
                }));
  }

  void size(const std::string& dir) {
    StateList state;
    std::vector<at::Tensor> masks;
    for (const char* part : {"model", "m", "v"}) {
      for (int64_t i = 0; i < 4; ++i) {
        const std::string name = std::to_string(i);
        const bool is_weight = std::string(part) == "model";
        if (is_weight) masks.push_back(at::full({(kNumElements + 7) / 8}, 1 << 3, at::kByte));
        const at::Tensor& bits = masks[static_cast<size_t>(i)];
        if (is_weight) keep_tenth(bits);
        at::Tensor values = at::randn({kNumElements});
        zero_pruned(values.mutable_data_ptr(), bits.const_data_ptr<uint8_t>(), kNumElements, 4);
        StateEntry entry{.key = is_weight ? "model/" + name : "optimizer/" + name + "/" + part,
                         .tensor = values};
        entry.kept_bits = bits;
        entry.kept_key = "_lockstep/masks/" + name;
        state.push_back(entry);
      }
    }
    for (size_t i = 0; i < masks.size(); ++i)
      state.push_back({.key = "_lockstep/masks/" + std::to_string(i), .tensor = masks[i]});
    int64_t bytes[2] = {0, 0};
    for (const bool sparse : {false, true}) {
      const std::string folder = dir + (sparse ? "/sparse" : "/dense");
      const checkpoint::SaveResult result =
          checkpoint::Saver(options_in(folder, sparse), alone_).save(state, 1);
      check(result.ok, result.error);
      bytes[sparse ? 1 : 0] = result.bytes_written;
    }
    std::printf("%ld %ld\n", bytes[0], bytes[1]);
  }

 private:
  static void keep_tenth(const at::Tensor& bits) {
    auto* flags = bits.mutable_data_ptr<uint8_t>();
    std::fill(flags, flags + bits.numel(), 0);
    for (int64_t i = 0; i < kNumElements; i += 10)
      flags[i / 8] |= static_cast<uint8_t>(1 << (i % 8));
  }

  void compute() {
    for (int64_t i = 0; i < kProducts; ++i) at::mm_out(product_, left_, right_);
  }

  /// One saver for all saves, as a run has: its staging memory is touched once.
  checkpoint::Saver& saver(const std::string& dir) {
    target_ = dir;
    std::error_code ignored;
    std::filesystem::remove(link_, ignored);
    std::filesystem::create_directory_symlink(std::filesystem::absolute(dir), link_);
    if (!saver_) saver_.emplace(options_in(link_), alone_);
    return *saver_;
  }

  checkpoint::SaveResult save(const std::string& dir) {
    const checkpoint::SaveResult result = saver(dir).save(state_, 1);
    check(result.ok, result.error);
    return result;
  }

  dist::SelfCommunicator alone_;
  StateList state_;
  std::string target_,
      link_ = std::filesystem::temp_directory_path() / ("saves-" + std::to_string(::getpid()));
  std::optional<checkpoint::Saver> saver_;
  KeptMemory probe_memory_;
  bool probed_ = false;
  at::Tensor left_ = at::randn({kMatrix, kMatrix}), right_ = at::randn({kMatrix, kMatrix}),
             product_ = at::zeros({kMatrix, kMatrix});
};

}  // namespace

int main() {
  at::set_num_threads(1);
  Bench bench;
  std::string command, dir;
  while (std::cin >> command >> dir) {
    try {
      std::filesystem::create_directories(dir);
      if (command == "durable") bench.durable(dir);
      if (command == "blocked") bench.blocked(dir);
      if (command == "restore") bench.restore(dir);
      if (command == "probe") bench.probe(dir);
      if (command == "size") bench.size(dir);
      std::fflush(stdout);
    } catch (const std::exception& fault) {
      std::fprintf(stderr, "%s\n", fault.what());
      return 1;
    }
  }
  return 0;
}
