#pragma once

#include <string_view>

#include <mpi.h>

/// Owners of MPI's handles, for dist/mpi only.
namespace lockstep::dist::mpi {

/// Throws Error(kUnavailable) naming the call and MPI's reason unless it succeeded.
void check_mpi(int code, std::string_view call);

/// Owner of a communicator, which it frees; MPI errors are returned as codes.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm comm);
  OwnedComm(OwnedComm&& other) noexcept : comm_(other.comm_) { other.comm_ = MPI_COMM_NULL; }
  OwnedComm& operator=(OwnedComm&&) = delete;
  ~OwnedComm();

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int num_ranks() const;

 private:
  MPI_Comm comm_;
};

}  // namespace lockstep::dist::mpi
