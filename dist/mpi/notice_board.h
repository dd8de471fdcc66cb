#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "dist/mpi/peer/mpi_handles.h"
#include "dist/notice.h"

namespace lockstep::dist::mpi {

/// The messages of all notices of a world, in a message space of their own that lives as long as
/// the world: what a notice has not heard when it goes is not heard by a later one, and is received
/// at the end.
class NoticeBoard {
 public:
  /// Collective.
  explicit NoticeBoard(OwnedComm comm) : comm_(std::move(comm)) {}

  /// Every rank makes the same notices in the same order; not collective. The board outlives them.
  std::unique_ptr<Notice> make_notice();
  /// Receives what nobody has listened to: MPI must not end before. Collective, without notices.
  void settle();

 private:
  class OneNotice;

  OwnedComm comm_;
  int num_notices_ = 0;
  int64_t num_told_ = 0, num_heard_ = 0;  ///< messages to each other rank, and from all others
};

}  // namespace lockstep::dist::mpi
