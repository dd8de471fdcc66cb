// Notices use plain MPI messages, which arrive without a matching call of the receiver. A notice
// polls them with MPI_Iprobe.
#include "dist/mpi/notice_board.h"

#include <array>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace lockstep::dist::mpi {
namespace {

constexpr int kNumTags = 32768;  // guaranteed by the MPI standard

// Static, since MPI reads a message's bytes until it is sent.
constexpr std::array<uint32_t, 1U << Notice::kNumWords> kMessages{0, 1, 2, 3};

uint32_t receive(const OwnedComm& comm, int from, int tag) {
  uint32_t words = 0;
  check_mpi(MPI_Recv(&words, 1, MPI_UINT32_T, from, tag, comm.get(), MPI_STATUS_IGNORE),
            "MPI_Recv");
  return words;
}

}  // namespace

class NoticeBoard::OneNotice final : public Notice {
 public:
  OneNotice(NoticeBoard& board, int tag) : board_(board), tag_(tag) {}
  ~OneNotice() override {
    for (MPI_Request& request : under_way_)
      if (request != MPI_REQUEST_NULL) static_cast<void>(MPI_Request_free(&request));
  }
  OneNotice(const OneNotice&) = delete;
  OneNotice& operator=(const OneNotice&) = delete;

  void tell(uint32_t words) override {
    check(words < kMessages.size(), "a word beyond Notice::kNumWords");
    if ((words & ~told_) != 0) send(words & ~told_);
    told_ |= words;
    int done = 0;  // MPI connects to a host only during calls of this process
    check_mpi(MPI_Testall(static_cast<int>(under_way_.size()), under_way_.data(), &done,
                          MPI_STATUSES_IGNORE),
              "MPI_Testall");
  }

  uint32_t heard() override {
    while (true) {
      int is_there = 0;
      MPI_Status status;
      // Polls without receiving, so that this never blocks.
      check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, tag_, board_.comm_.get(), &is_there, &status),
                "MPI_Iprobe");
      if (is_there == 0) return heard_;
      heard_ |= receive(board_.comm_, status.MPI_SOURCE, tag_);
      ++board_.num_heard_;
    }
  }

 private:
  void send(uint32_t words) {
    for (int r = 0; r < board_.comm_.num_ranks(); ++r) {
      if (r == board_.comm_.rank()) continue;
      MPI_Request& request = under_way_.emplace_back(MPI_REQUEST_NULL);
      check_mpi(
          MPI_Isend(&kMessages.at(words), 1, MPI_UINT32_T, r, tag_, board_.comm_.get(), &request),
          "MPI_Isend");
    }
    ++board_.num_told_;
  }

  NoticeBoard& board_;
  const int tag_;
  uint32_t told_ = 0, heard_ = 0;
  std::vector<MPI_Request> under_way_;
};

std::unique_ptr<Notice> NoticeBoard::make_notice() {
  return std::make_unique<OneNotice>(*this, num_notices_++ % kNumTags);
}

// All ranks exchange the numbers of messages sent, so each knows how many it must still receive.
void NoticeBoard::settle() {
  std::vector<int64_t> told_N(static_cast<size_t>(comm_.num_ranks()));
  check_mpi(MPI_Allgather(&num_told_, 1, MPI_INT64_T, told_N.data(), 1, MPI_INT64_T, comm_.get()),
            "MPI_Allgather");
  const int64_t num_due = std::accumulate(told_N.begin(), told_N.end(), int64_t{0}) - num_told_;
  for (; num_heard_ < num_due; ++num_heard_)
    static_cast<void>(receive(comm_, MPI_ANY_SOURCE, MPI_ANY_TAG));
}

}  // namespace lockstep::dist::mpi
