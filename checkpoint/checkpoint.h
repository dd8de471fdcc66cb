#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/trackable.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

class ObjectTable;
class Restoration;
class Saver;

/// One object with its key.
struct NamedObject {
  std::string key;
  Tracked object;
};

/// Outcome of a restore(). It is a handle: copies give the same answers. It stays valid after the
/// Checkpoint is gone, as long as the Checkpoint's objects exist.
class RestoreStatus {
 public:
  /// Throws Error(kBadData) unless every saved value has found its variable and every variable its
  /// value; the message names the others. Throws too if there was nothing to restore. Writes
  /// nothing. A variable created after restore() without announcement has no value before
  /// Checkpoint::look_for_new().
  const RestoreStatus& assert_consumed() const;
  /// Throws Error(kBadData) unless every existing variable has its value; saved values may still
  /// wait. Throws too if there was nothing to restore.
  const RestoreStatus& assert_existing_objects_matched() const;
  /// Marks unused values as expected: no warning is logged when the Checkpoint closes the file.
  const RestoreStatus& expect_partial() const;

  /// Returns the keys of saved values that wait for their variables. They stay unused if no
  /// variable comes.
  std::vector<std::string> pending() const;
  /// Returns the keys of variables that the checkpoint has no value for.
  std::vector<std::string> missing() const;

 private:
  friend class Checkpoint;
  explicit RestoreStatus(std::shared_ptr<Restoration> restoration)
      : restoration_(std::move(restoration)) {}
  std::shared_ptr<Restoration> restoration_;  // null: there was nothing to restore
};

struct CheckpointSetting {
  /// Ranks that save and restore together, each with the same objects. Null: this process alone.
  /// Must outlive the Checkpoint.
  dist::Communicator* ranks = nullptr;
  int64_t keep_checkpoint_max = -1;  ///< newest checkpoints to keep; -1: all
};

/// Saves and restores objects under user-chosen names, in TensorFlow's files (docs/library.md):
///
///   Checkpoint checkpoint({{"model", net}, {"optimizer", sgd}});
///   checkpoint.restore("save/model.ckpt-3").assert_consumed();
///   checkpoint.save("save/model.ckpt");   // save/model.ckpt-4
///
/// Objects are tensors, Lockstep's models and optimizers, anything that lists its state, and any
/// Trackable. checkpoint/torch_objects.h adds modules and optimizers of LibTorch. Objects
/// passed by reference must outlive the Checkpoint.
///
/// One thread at a time. With ranks, every function is collective, except those of RestoreStatus
/// and those marked below. An error on one rank is thrown on all.
class Checkpoint {
 public:
  /// Tracks the objects. Keys must be non-empty, unique and without '/'. Otherwise throws
  /// Error(kUsage).
  Checkpoint(std::initializer_list<NamedObject> objects, CheckpointSetting setting = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Adds an object. A restore in progress gives it its values at once. Variables of the other
  /// objects are not touched.
  void add(std::string key, Tracked object);

  /// Writes PREFIX-NUMBER and returns that name. The checkpoint is durable and committed on return.
  /// The folder is created if it is missing.
  ///
  /// Numbers rise from 1. The number is stored in the checkpoint, so it continues after a restore.
  /// A number that the folder already has is skipped. Programs that save under one prefix at the
  /// same time wait for each other, so no number is used twice.
  ///
  /// Throws Error(kUsage) for an invalid prefix. Throws the disk's fault (kIo, kCannotCreate) if
  /// the files cannot be written; earlier checkpoints remain.
  ///
  /// During a restore(), throws Error(kUsage) if variables were created since and have not got
  /// their saved values. Nothing is written then. It is unknown whether they have been trained
  /// meanwhile. So a save neither overwrites them nor treats their own values as restored ones.
  /// Call look_for_new() right after creating them, or stop_restoring().
  std::string save(const std::string& prefix);

  /// Fills every existing variable from this checkpoint, PREFIX-NUMBER. It may be TensorFlow's or
  /// ours, written by any number of ranks.
  ///
  /// A variable that does not exist yet gets its value when it is created. Examples are objects
  /// added later, layers that take their shape from their first input, and slots of an optimizer.
  /// So a restore may precede the first forward pass. The files stay open until all have got their
  /// values, and the next restore replaces this one. Type and shape are checked now for existing
  /// variables, else at creation. The error names the key and both forms.
  ///
  /// Throws Error(kUsage, kInputMissing) for an invalid name, kBadData, kIo. Throws kDisagree if
  /// the ranks' variables differ in name or form. After an error each variable is entirely old or
  /// entirely new, and no restore is in progress.
  ///
  /// nullopt (latest_checkpoint() of an empty folder) does nothing but log a warning.
  RestoreStatus restore(const std::optional<std::string>& save);
  /// Restores everything now or nothing. Throws Error(kBadData) with the names in three cases:
  /// variables are missing in the checkpoint, saved values have no variable, layers are not built.
  /// Nothing is written then. Only values of the tracked objects count. If a read fails or finds
  /// damage, each variable is entirely old or entirely new. Throws kDisagree as restore().
  void load_weights_now(const std::string& save);
  /// Gives values to variables created since without announcement: modules or parameter groups that
  /// were added by hand. Call it before they are trained, because their own values are lost. Not
  /// collective.
  void look_for_new();
  /// Ends the restore in progress: variables keep their values, and waiting values are dropped. Not
  /// collective.
  void stop_restoring();

  /// Returns the number of the newest checkpoint, saved or restored; 0: none yet.
  int64_t save_counter() const { return save_counter_; }

 private:
  void require_equal_forms();
  void require_all_given();
  dist::Communicator& ranks();

  CheckpointSetting setting_;
  std::unique_ptr<dist::Communicator> alone_;
  std::shared_ptr<ObjectTable> objects_;
  std::shared_ptr<Restoration> restoration_;  // null: no restore in progress
  std::unique_ptr<Saver> saver_;
  std::string saver_prefix_;
  int64_t save_counter_ = 0;
};

}  // namespace lockstep::checkpoint
