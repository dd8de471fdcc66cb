#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "dist/mpi/peer/mpi_handles.h"
#include "dist/notice.h"

namespace lockstep::dist::mpi {

/// Messages of all notices of a world, over a separate communicator that exists as long as the
/// world. A message that a notice did not receive before its destruction reaches no later notice;
/// settle() receives it.
class NoticeBoard {
 public:
  /// Takes over the communicator, on which only notices send. Collective.
  explicit NoticeBoard(OwnedComm comm) : comm_(std::move(comm)) {}

  /// Creates a notice. Every rank creates the same notices in the same order; not collective. The
  /// board outlives them.
  std::unique_ptr<Notice> make_notice();
  /// Receives all unread messages, since MPI must not end before that. Collective, without notices.
  void settle();

 private:
  class OneNotice;

  OwnedComm comm_;
  int num_notices_ = 0;
  int64_t num_told_ = 0, num_heard_ = 0;  ///< messages to each other rank, and from all others
};

}  // namespace lockstep::dist::mpi
