#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/tensors/state_list.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"
#include "pytorch/training_loop.h"

namespace lockstep::pytorch {

/// Checkpoints of a user's loop, FOLDER/model.ckpt-<step>, in TensorFlow's format
/// (docs/design/checkpoint_format.md). One save at a time; it is written while training continues.
/// All ranks make the same calls.
class LoopCheckpoints {
 public:
  /// The loop must outlive this.
  explicit LoopCheckpoints(TrainingLoop& loop) : loop_(loop) {}
  ~LoopCheckpoints();
  LoopCheckpoints(const LoopCheckpoints&) = delete;
  LoopCheckpoints& operator=(const LoopCheckpoints&) = delete;

  /// Begins a save of these entries and the loop's own. Waits for an earlier save, of which rank 0
  /// logs a failure. Tensors may change once the call returns, except steady ones: those may
  /// change in begin_update() only. keep: number of checkpoints that stay; -1: all. Collective.
  void begin(const std::string& folder, int64_t keep, StateList entries);
  /// Waits for the save in progress, or returns the result of the last one. Throws like
  /// Saver::wait(). Collective.
  checkpoint::SaveResult wait();
  /// Sets a function that receives the result of each save, when a call of this object has waited
  /// for it.
  void set_on_saved(std::function<void(const checkpoint::SaveResult&)> on_saved) {
    on_saved_ = std::move(on_saved);
  }

  /// Restores the newest checkpoint of a folder, or that of a prefix, into these entries and the
  /// loop. nullopt: the folder has none. Collective. Throws on every rank.
  std::optional<checkpoint::RestoreReport> restore(const std::string& from, StateList entries,
                                                   bool accepts_changes);

 private:
  TrainingLoop& loop_;
  std::unique_ptr<dist::Communicator> comm_;  ///< of the saver alone; null before the first save
  std::string prefix_;
  checkpoint::SaveResult last_;
  std::function<void(const checkpoint::SaveResult&)> on_saved_;
  std::unique_ptr<checkpoint::Saver> saver_;
};

}  // namespace lockstep::pytorch
