// MPI returns errors as codes (MPI_ERRORS_RETURN); check_mpi() turns them into exceptions.
#include "dist/mpi/peer/mpi_handles.h"

#include <array>
#include <string>

#include "base/error.h"

namespace lockstep::dist::mpi {
namespace {

bool is_running() {
  int finalized = 0;
  return MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

}  // namespace

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  const std::string reason =
      length > 0 ? std::string(text.data(), length) : "error " + std::to_string(code);
  throw Error(ExitCode::kUnavailable, "dist.mpi", std::string(call) + ": " + reason);
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

}  // namespace lockstep::dist::mpi
