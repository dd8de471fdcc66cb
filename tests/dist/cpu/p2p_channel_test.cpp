#include "dist/cpu/p2p_channel.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/dist/cpu/counted_transport.h"

namespace lockstep::dist::cpu {
namespace p2p_channel_test {

/// Transport whose messages leave after a number of MPI polls, as while a connection is made.
class LateTransport final : public Transport {
 public:
  LateTransport(int num_ranks, int looks) : others_(0, num_ranks), looks_left_(looks) {}

  int looks_left() const { return looks_left_; }

  int rank() const override { return others_.rank(); }
  int num_ranks() const override { return others_.num_ranks(); }
  std::vector<Peer> gather_peers() override { return others_.gather_peers(); }
  Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) override {
    static_cast<void>(others_.send(bytes, num_bytes, to, tag));
    return kSent;
  }
  Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) override {
    return others_.receive(bytes, num_bytes, from, tag);
  }
  bool test_all(std::span<Request> requests) override {
    const bool come = others_.test_all(requests);
    const bool any_sent = std::find(requests.begin(), requests.end(), kSent) != requests.end();
    if (!any_sent || looks_left_ == 0) return come;
    --looks_left_;
    return false;
  }
  bool test(Request* request) override { return *request != kSent || looks_left_ == 0; }

 private:
  static constexpr Request kSent{1};

  tests::CountedTransport others_;
  int looks_left_;
};

constexpr Call kCall{.kind = CallKind::kBarrier};

/// Else the rank may sleep where it asks MPI for nothing, and the other waits for its note for
/// ever.
TEST(P2pChannel, OwnNotesHaveLeftWhenAllHaveCome) {
  for (const int num_ranks : {2, 3, 16}) {
    LateTransport transport(num_ranks, 5);
    P2pChannel channel(transport);
    channel.begin(kCall);
    EXPECT_EQ(transport.looks_left(), 5);
    channel.wait_for_notes();
    EXPECT_EQ(transport.looks_left(), 0) << num_ranks << " ranks";
  }
}

TEST(P2pChannel, OwnNotesHaveLeftWhenAllHaveMet) {
  for (const int direct_ranks : {16, 1})
    for (const int num_ranks : {1, 2, 3, 16}) {
      LateTransport transport(num_ranks, 5);
      P2pChannel channel(transport, direct_ranks);
      channel.meet(kCall);
      EXPECT_EQ(transport.looks_left(), num_ranks == 1 ? 5 : 0) << num_ranks << " ranks";
    }
}

TEST(P2pChannel, LongMessagesLeaveInParts) {
  constexpr int64_t kPart = P2pChannel::kPartBytes;
  const std::vector<std::byte> bytes(3 * kPart + 5);
  const std::vector<std::pair<int64_t, int64_t>> num_parts{
      {0, 1}, {1, 1}, {kPart, 1}, {kPart + 1, 2}, {3 * kPart, 3}, {3 * kPart + 5, 4}};
  for (const auto& [num_bytes, expected] : num_parts) {
    tests::CountedTransport transport(0, 2);
    P2pChannel channel(transport);
    channel.begin(kCall);
    channel.wait_for_notes();
    const tests::CountedTransport::Counts notes = transport.counts();
    P2pChannel::Batch batch;
    channel.send(bytes.data(), num_bytes, 1, 7, &batch);
    channel.wait(&batch);
    EXPECT_EQ(transport.counts().num_messages - notes.num_messages, expected) << num_bytes;
    EXPECT_EQ(transport.counts().num_bytes - notes.num_bytes, num_bytes);
    EXPECT_LE(transport.counts().largest_bytes, kPart);
  }
}

}  // namespace p2p_channel_test
}  // namespace lockstep::dist::cpu
