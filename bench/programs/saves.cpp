// Saves and restores of 1 GB on demand: reads commands from standard input, answers each with one
// line of numbers. bench/checkpoint starts it and its peers, which know the same commands, so
// that all sides keep warm memory and take turns. Clocks stand around the calls that a caller
// makes.
//
//   durable DIR    save into DIR; seconds until it is committed
//   blocked DIR    a save during rounds of matrix products, until the save is done: seconds of the
//                  caller inside the save's calls, seconds that all those rounds took longer than
//                  without a save, seconds of one round without
//   restore DIR    into place, checksums verified; as many threads as cores
//   copy DIR       all tensors into other memory, by one thread: the least that staging does
//   fill DIR       all tensors from other memory, summed and copied piece by piece, by all cores:
//                  the least that a restore does that verifies what it takes
//   probe DIR      the same bytes written past the page cache and synced, nothing else
//   size DIR       bytes of a save of weights and two moments: "dense sparse", masks keep 10 %
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/large_files.h"
#include "base/simd/bit_mask.h"
#include "checkpoint/format/parallel_read.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"

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
    checkpoint::Saver& saver = saver_in(dir);
    std::printf("%f\n", seconds_of([&] { require_ok(saver.save(state_, 1)); }));
  }

  void blocked(const std::string& dir) {
    checkpoint::Saver& saver = saver_in(dir);
    const double before = seconds_of([&] { compute(); });
    double inside = 0;
    int rounds = 0;
    const double all = seconds_of([&] {
      inside += seconds_of([&] { saver.begin(state_, 1); });
      do {
        compute();
        if (rounds++ == 0) inside += seconds_of([&] { saver.wait_until_staged(); });
      } while (!saver.is_done());
    });
    require_ok(saver.wait());
    const double alone = (before + seconds_of([&] { compute(); })) / 2;
    std::printf("%f %f %f\n", inside, all - rounds * alone, alone);
  }

  void copy(const std::string&) {
    make_copies();
    std::printf("%f\n", seconds_of([&] {
                  for (size_t i = 0; i < copies_.size(); ++i) copies_[i].copy_(state_[i].tensor);
                }));
  }

  void fill(const std::string&) {
    make_copies();
    constexpr int64_t kPieceBytes = int64_t{256} << 10;  // stays in a core's own cache
    const auto fill_one = [&](size_t i) {
      auto* const to = static_cast<char*>(state_[i].tensor.mutable_data_ptr());
      const auto* const from = static_cast<const char*>(copies_[i].const_data_ptr());
      const auto num_bytes = static_cast<int64_t>(copies_[i].nbytes());
      uint32_t crc = 0;
      for (int64_t at = 0; at < num_bytes; at += kPieceBytes) {
        const int64_t count = std::min(kPieceBytes, num_bytes - at);
        crc = crc32c({from + at, static_cast<size_t>(count)}, crc);
        checkpoint::copy_past_cache(to + at, from + at, count);
      }
    };
    std::printf("%f\n", seconds_of([&] {
                  checkpoint::for_each_on_threads(copies_.size(), checkpoint::default_num_threads(),
                                                  fill_one);
                }));
  }

  void restore(const std::string& dir) {
    std::printf("%f\n", seconds_of([&] { checkpoint::restore(dir + "/model.ckpt-1", state_); }));
  }

  void probe(const std::string& dir) {
    constexpr int64_t kBytes = kNumTensors * kNumElements * 4, kChunk = int64_t{4} << 20;
    constexpr auto kAlignment = std::align_val_t{1 << 21};
    constexpr size_t kPadded = (kBytes + 4095) / 4096 * 4096;
    if (probe_memory_ == nullptr) {
      probe_memory_ = static_cast<char*>(::operator new(kPadded, kAlignment));
      std::fill_n(probe_memory_, kPadded, 1);
    }
    const std::span<char> memory(probe_memory_, kPadded);
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
      require_ok(result);
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
  checkpoint::Saver& saver_in(const std::string& dir) {
    std::error_code ignored;
    std::filesystem::remove(link_, ignored);
    std::filesystem::create_directory_symlink(std::filesystem::absolute(dir), link_);
    if (!saver_) saver_.emplace(options_in(link_), alone_);
    return *saver_;
  }

  void make_copies() {
    if (copies_.empty())
      for (const StateEntry& entry : state_) copies_.push_back(entry.tensor.clone());
  }

  static void require_ok(const checkpoint::SaveResult& result) { check(result.ok, result.error); }

  dist::SelfCommunicator alone_;
  StateList state_;
  std::vector<at::Tensor> copies_;
  std::string link_ =
      std::filesystem::temp_directory_path() / ("saves-" + std::to_string(::getpid()));
  std::optional<checkpoint::Saver> saver_;
  char* probe_memory_ = nullptr;  // until the process ends
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
      if (command == "copy") bench.copy(dir);
      if (command == "fill") bench.fill(dir);
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
