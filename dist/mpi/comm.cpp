#include "dist/mpi/comm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"

namespace lockstep::dist::mpi {

// Errors: MPI returns them as codes (MPI_ERRORS_RETURN), and check_mpi() turns these into
// exceptions.

static bool is_running() {
  int finalized = 0;
  return MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  const std::string reason =
      length > 0 ? std::string(text.data(), length) : "error " + std::to_string(code);
  throw Error(ExitCode::kUnavailable, "dist.mpi", std::string(call) + ": " + reason);
}

MPI_Comm copy_of(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  return copy;
}

OwnedComm::OwnedComm(MPI_Comm comm) : comm_(comm) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

OwnedComm::~OwnedComm() {
  // No one could handle an error here: the communicator is given up in any case.
  if (comm_ != MPI_COMM_NULL && is_running()) static_cast<void>(MPI_Comm_free(&comm_));
}

int OwnedComm::rank() const {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  return rank;
}

int OwnedComm::num_ranks() const {
  int num_ranks = 0;
  check_mpi(MPI_Comm_size(comm_, &num_ranks), "MPI_Comm_size");
  return num_ranks;
}

// MpiTransport: MPI_Isend and MPI_Irecv with requests that callers poll, so that no wait is
// unbounded.

namespace {

// MPI_Request is a pointer or a number, depending on the MPI library.
constexpr size_t kHandleBytes = sizeof(MPI_Request);
static_assert(kHandleBytes <= sizeof(cpu::Transport::Request));

cpu::Transport::Request wrapped(MPI_Request request) {
  cpu::Transport::Request handle{};
  std::memcpy(&handle, &request, kHandleBytes);
  return handle;
}

MPI_Request unwrapped(cpu::Transport::Request handle) {
  MPI_Request request = MPI_REQUEST_NULL;
  std::memcpy(&request, &handle, kHandleBytes);
  return request;
}

int as_count(int64_t num_bytes) {
  check(num_bytes >= 0 && num_bytes <= std::numeric_limits<int>::max(), "a message of 2 GiB");
  return static_cast<int>(num_bytes);
}

class MpiTransport final : public cpu::Transport {
 public:
  MpiTransport(const MpiRanks& ranks, std::shared_ptr<OwnedComm> comm)
      : ranks_(ranks), comm_(std::move(comm)) {}

  int rank() const override { return ranks_.rank(); }
  int num_ranks() const override { return ranks_.num_ranks(); }
  std::vector<cpu::Peer> gather_peers() override { return cpu::gather_peers(ranks_); }

  Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(bytes, as_count(num_bytes), MPI_BYTE, to, tag, comm_->get(), &request),
              "MPI_Isend");
    return wrapped(request);
  }

  Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(bytes, as_count(num_bytes), MPI_BYTE, from, tag, comm_->get(), &request),
              "MPI_Irecv");
    return wrapped(request);
  }

  bool test_all(std::span<Request> requests) override {
    asked_.resize(requests.size());
    std::transform(requests.begin(), requests.end(), asked_.begin(), unwrapped);
    int done = 0;
    check_mpi(
        MPI_Testall(static_cast<int>(asked_.size()), asked_.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    std::transform(asked_.begin(), asked_.end(), requests.begin(), wrapped);
    return done != 0;
  }

  bool test(Request* request) override {
    // MPI_Test sets a completed request to MPI_REQUEST_NULL, for which it returns true again.
    MPI_Request asked = unwrapped(*request);
    int done = 0;
    check_mpi(MPI_Test(&asked, &done, MPI_STATUS_IGNORE), "MPI_Test");
    *request = wrapped(asked);
    return done != 0;
  }

 private:
  const MpiRanks ranks_;
  const std::shared_ptr<OwnedComm> comm_;
  std::vector<MPI_Request> asked_;  ///< a member, so that a steady step allocates nothing
};

}  // namespace

cpu::Peer MpiRanks::self() const {
  cpu::Peer self = cpu::this_process();
  self.world_rank = world_rank_;
  return self;
}

void MpiRanks::all_gather(const void* own, int64_t num_bytes, void* all_N) const {
  const int count = as_count(num_bytes);
  check_mpi(MPI_Allgather(own, count, MPI_BYTE, all_N, count, MPI_BYTE, comm_->get()),
            "MPI_Allgather");
}

std::unique_ptr<cpu::RankGroup> MpiRanks::split(int color, int key) const {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_->get(), color, key, &part), "MPI_Comm_split");
  return std::make_unique<MpiRanks>(part, world_rank_);
}

MPI_Comm ranks_of_this_host(MPI_Comm comm, int rank) {
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  return shared;
}

std::unique_ptr<cpu::RankGroup> MpiRanks::ranks_of_this_host() const {
  return std::make_unique<MpiRanks>(mpi::ranks_of_this_host(comm_->get(), rank()), world_rank_);
}

std::unique_ptr<cpu::Transport> MpiRanks::make_transport() const {
  return std::make_unique<MpiTransport>(*this, comm_);
}

}  // namespace lockstep::dist::mpi
