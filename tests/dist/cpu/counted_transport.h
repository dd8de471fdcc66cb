#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "dist/cpu/p2p_channel.h"

namespace lockstep::tests {

/// One rank of a world of any size, alone: what it sends is counted and goes nowhere, and what it
/// waits for comes at once, as if all ranks were alike. Notes (tag 0) are copies of its own; other
/// messages leave the memory as it is. So what a rank sends can be counted without its peers.
class CountedTransport final : public dist::cpu::Transport {
 public:
  CountedTransport(int rank, int num_ranks)
      : rank_(rank), num_ranks_(num_ranks), bytes_to_N_(static_cast<size_t>(num_ranks)) {}

  struct Counts {
    int64_t num_messages = 0, num_bytes = 0, largest_bytes = 0;
  };
  const Counts& counts() const { return counts_; }
  /// Bytes of values, without notes.
  const std::vector<int64_t>& bytes_to_N() const { return bytes_to_N_; }

  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }
  std::vector<dist::cpu::Peer> gather_peers() override {
    return std::vector<dist::cpu::Peer>(static_cast<size_t>(num_ranks_));
  }

  Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) override {
    ++counts_.num_messages;
    counts_.num_bytes += num_bytes;
    counts_.largest_bytes = std::max(counts_.largest_bytes, num_bytes);
    if (tag == kNoteTag)
      own_note_.assign(bytes, bytes + num_bytes);
    else
      bytes_to_N_[static_cast<size_t>(to)] += num_bytes;
    return {};
  }
  Request receive(std::byte* bytes, int64_t, int, int tag) override {
    if (tag == kNoteTag) notes_due_.push_back(bytes);
    return {};
  }
  bool test_all(std::span<Request>) override { return deliver(); }
  bool test(Request*) override { return deliver(); }

 private:
  static constexpr int kNoteTag = 0;

  bool deliver() {
    if (!own_note_.empty())
      for (std::byte* note : notes_due_) std::memcpy(note, own_note_.data(), own_note_.size());
    notes_due_.clear();
    return true;
  }

  int rank_, num_ranks_;
  Counts counts_;
  std::vector<int64_t> bytes_to_N_;
  std::vector<std::byte> own_note_;
  std::vector<std::byte*> notes_due_;
};

}  // namespace lockstep::tests
