// MPI_Isend and MPI_Irecv with requests that callers poll, so that no wait is unbounded.
#include "dist/mpi/p2p/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace lockstep::dist::mpi {
namespace {

// MPI_Request is a pointer or a number, depending on the MPI library.
constexpr size_t kHandleBytes = sizeof(MPI_Request);
static_assert(kHandleBytes <= sizeof(Transport::Request));

Transport::Request wrapped(MPI_Request request) {
  Transport::Request handle{};
  std::memcpy(&handle, &request, kHandleBytes);
  return handle;
}

MPI_Request unwrapped(Transport::Request handle) {
  MPI_Request request = MPI_REQUEST_NULL;
  std::memcpy(&request, &handle, kHandleBytes);
  return request;
}

int as_count(int64_t num_bytes) {
  check(num_bytes >= 0 && num_bytes <= std::numeric_limits<int>::max(), "a message of 2 GiB");
  return static_cast<int>(num_bytes);
}

}  // namespace

Transport::Request MpiTransport::send(const std::byte* bytes, int64_t num_bytes, int to, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(bytes, as_count(num_bytes), MPI_BYTE, to, tag, comm_.get(), &request),
            "MPI_Isend");
  return wrapped(request);
}

Transport::Request MpiTransport::receive(std::byte* bytes, int64_t num_bytes, int from, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(bytes, as_count(num_bytes), MPI_BYTE, from, tag, comm_.get(), &request),
            "MPI_Irecv");
  return wrapped(request);
}

bool MpiTransport::test_all(std::span<Request> requests) {
  asked_.resize(requests.size());
  std::transform(requests.begin(), requests.end(), asked_.begin(), unwrapped);
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(asked_.size()), asked_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  std::transform(asked_.begin(), asked_.end(), requests.begin(), wrapped);
  return done != 0;
}

bool MpiTransport::test(Request* request) {
  // MPI_Test sets a completed request to MPI_REQUEST_NULL, for which it returns true again.
  MPI_Request asked = unwrapped(*request);
  int done = 0;
  check_mpi(MPI_Test(&asked, &done, MPI_STATUS_IGNORE), "MPI_Test");
  *request = wrapped(asked);
  return done != 0;
}

}  // namespace lockstep::dist::mpi
