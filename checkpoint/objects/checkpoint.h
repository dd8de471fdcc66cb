#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/objects/trackable.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

class ObjectTable;
class Restoration;
class Saver;

/// One object under its key.
struct NamedObject {
  std::string key;
  Tracked object;
};

/// What became of a restore(). A handle; copies tell the same, also after the Checkpoint is gone if
/// its objects are not.
class RestoreStatus {
 public:
  /// Throws Error(kBadData) unless every saved value has found its variable and every variable its
  /// value; names those that have not. Writes nothing: a variable that was made after restore()
  /// without being announced has no value before Checkpoint::look_for_new(). Throws too if there
  /// was nothing to restore.
  const RestoreStatus& assert_consumed() const;
  /// Throws Error(kBadData) unless every variable that exists has its value; saved ones may wait.
  /// Throws too if there was nothing to restore.
  const RestoreStatus& assert_existing_objects_matched() const;
  /// Unused values are expected: no warning when the Checkpoint closes the file.
  const RestoreStatus& expect_partial() const;

  /// Keys of saved values that wait for their variable (and are unused if none comes).
  std::vector<std::string> pending() const;
  /// Keys of variables that the save has no value for.
  std::vector<std::string> missing() const;

 private:
  friend class Checkpoint;
  explicit RestoreStatus(std::shared_ptr<Restoration> restoration)
      : restoration_(std::move(restoration)) {}
  std::shared_ptr<Restoration> restoration_;  // null: there was nothing to restore
};

struct CheckpointSetting {
  /// The ranks that save and restore together, each with the same objects; null: this process
  /// alone. Must outlive the Checkpoint.
  dist::Communicator* ranks = nullptr;
  int64_t keep_checkpoint_max = -1;  ///< newest saves that stay; -1: all
};

/// Saves and restores objects under names of one's own, in TensorFlow's files
/// (docs/library.md):
///
///   Checkpoint checkpoint({{"model", net}, {"optimizer", sgd}});
///   checkpoint.restore("save/model.ckpt-3").assert_consumed();
///   checkpoint.save("save/model.ckpt");   // save/model.ckpt-4
///
/// Objects: tensors; Lockstep's models and optimizers; whatever lists its state or is a Trackable;
/// with checkpoint/objects/torch_objects.h modules and optimizers of LibTorch. Those passed by
/// reference must outlive the Checkpoint.
///
/// One thread at a time; with ranks, every function but the status' is collective. Errors that one
/// rank meets are thrown on all.
class Checkpoint {
 public:
  /// Keys: not empty, each once, without '/'. Else Error(kUsage).
  Checkpoint(std::initializer_list<NamedObject> objects, CheckpointSetting setting = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Another object. A restore under way gives it its values at once (to the others' variables
  /// that were there before it gives nothing).
  void add(std::string key, Tracked object);

  /// Writes PREFIX-NUMBER, durable and committed when it returns, and gives that name. Numbers rise
  /// from 1; the number is kept in the save, so that after a restore they go on, and one that the
  /// folder holds already is passed over. Programs that save under one prefix at the same time wait
  /// for each other, so that no number is used twice. The folder is made if it is not there. Throws
  /// Error(kUsage) for a prefix that is none, and the disk's fault (kIo, kCannotCreate) if it
  /// cannot be written: the saves before it stand.
  ///
  /// While a restore() is under way, throws Error(kUsage), before anything is written, if variables
  /// exist that were made since and have not been given the values saved for them: whether they
  /// have been trained meanwhile is not known, so a save neither writes into them nor takes their
  /// own values for restored ones. look_for_new() right after making them, or stop_restoring().
  std::string save(const std::string& prefix);

  /// Fills every variable that exists from this save, PREFIX-NUMBER, TensorFlow's or ours, whatever
  /// number of ranks wrote it. What does not exist yet takes its value when it is created: objects
  /// that are added later, layers that take their shape from their first input, slots of an
  /// optimizer. So a restore may come before the first forward pass; until all have come, the files
  /// stay open, and the next restore replaces this one. Forms are checked where the variable
  /// exists, in creation else: the error names key and both forms. Throws Error(kUsage,
  /// kInputMissing) for a name that is none, kBadData, kIo; kDisagree if the ranks' variables
  /// differ in name or form. After an error each variable is wholly old or wholly new, and no
  /// restore is under way.
  ///
  /// Nothing (latest_checkpoint() of an empty folder): does nothing, with a warning.
  RestoreStatus restore(const std::optional<std::string>& save);
  /// Restores now or not at all: throws Error(kBadData), naming them, if variables are missing in
  /// the save, saved values of the tracked objects have no variable, or layers have not been built.
  /// Nothing is written then. If a read fails or finds damage, each variable is wholly old or
  /// wholly new. kDisagree as restore().
  void load_weights_now(const std::string& save);
  /// Gives values to variables that were created since without being announced: modules or
  /// parameter groups that were put in by hand. To be called before they are trained: what they
  /// hold is lost. Not collective.
  void look_for_new();
  /// Ends the restore under way: variables keep what they hold, values that wait are dropped. Not
  /// collective.
  void stop_restoring() { let_go(); }

  /// The number of the newest save, written or restored; 0: none yet.
  int64_t save_counter() const { return save_counter_; }

 private:
  template <typename Body>
  void on_all(const Body& body);
  void require_equal_forms();
  void require_all_given();
  void let_go();
  dist::Communicator& ranks();

  CheckpointSetting setting_;
  std::unique_ptr<dist::Communicator> alone_;
  std::shared_ptr<ObjectTable> objects_;
  std::shared_ptr<Restoration> restoration_;  // null: none under way
  std::unique_ptr<Saver> saver_;
  std::string saver_prefix_;
  int64_t save_counter_ = 0;
};

}  // namespace lockstep::checkpoint
