#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/serve/job.h"

namespace lockstep::daemon {

/// Jobs in a folder, shared by one server and any number of programs that submit, look and cancel:
///
///   queued/7.json     waits; the lowest number is next
///   running/7.json    is the server's; after a kill it is still here and goes on
///   set_aside/7.json  could not be read: kept as it was
///   jobs/7/           the job's own folder: log, result.json, job.json once it has ended, `run`
///                     (its project_dir) and, where somebody wants it to end, `cancel`
///   server.json       the server: host, process, ranks, page (no file: none was started, or it
///                     ended)
///
/// A job is in one of the first three places or has ended, and goes from one to the next by a
/// rename: of a cancel and a start at one moment, one comes first. Files are written beside and
/// renamed when they are on disk.
class JobQueue {
 public:
  static constexpr int64_t kMaxJobBytes = 4 << 20;  ///< of one file in queued
  static constexpr int64_t kMaxQueued = 1000;       ///< unless the server says otherwise

  /// Nothing is made yet.
  explicit JobQueue(const std::filesystem::path& root);

  /// For whoever submits. The job's number. Throws Error: kUnavailable if enough jobs wait, kUsage
  /// for a job that is too large, and as files do.
  int64_t submit(JobSpec spec) const;
  /// Asks the job to end: one that waits has ended when this returns; the running one saves and
  /// stops after its next step. Throws Error: kUsage if it has ended, kInputMissing if there is no
  /// such job.
  JobState cancel(int64_t id) const;

  /// For the server, and for whoever submits. Makes the folders, for this user alone. Throws Error:
  /// kCannotCreate where others may write into one that is there.
  void make() const;
  /// One more folder in it, for this user alone.
  void make_place(const char* name) const;
  /// Numbers in queued, running, set_aside, jobs; ascending.
  std::vector<int64_t> numbers_in(const char* place) const;
  using MayBegin = std::function<bool(int64_t id)>;
  /// Out of running or, where there is none, the next one of queued that may begin, which then is
  /// in running. Those that cannot be read, or are another user's, are set aside, and the log says
  /// so.
  std::optional<Job> take(const MayBegin& may_begin = nullptr) const;
  /// Writes down what the server has noted of a running job.
  void note(const Job& job) const;
  /// When that was, in Unix time; nothing for a job that is not running.
  std::optional<double> noted_at_s(int64_t id) const;
  /// Into queued again, where its number makes it the first.
  void put_back(const Job& job) const;
  void end(const Job& job, const JobResult& result) const;

  /// For everybody. Nothing for a number that no job has.
  std::optional<JobState> state(int64_t id) const;
  /// Nothing unless it has ended. Throws Error(kBadData) for a damaged file.
  std::optional<JobResult> result(int64_t id) const;
  bool has_ended(int64_t id) const;
  /// What was submitted; nothing if it is set aside or there is no such job.
  std::optional<JobSpec> spec(int64_t id) const;

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path folder(int64_t id) const;
  /// Throws Error(kBadData) for a file of another user than this one, root and the folder's owner.
  void require_own(const std::filesystem::path& file) const;
  std::filesystem::path log(int64_t id) const { return folder(id) / "log"; }
  std::filesystem::path cancel_file(int64_t id) const { return folder(id) / "cancel"; }
  std::filesystem::path server_file() const { return root_ / "server.json"; }
  /// What it says; empty: there is none.
  std::string server_text() const;

 private:
  std::filesystem::path file(const char* place, int64_t id) const;
  std::filesystem::path result_file(int64_t id) const { return folder(id) / "result.json"; }
  void move(const char* from, int64_t id, const std::filesystem::path& to) const;
  std::optional<Job> read_or_set_aside(const char* place, int64_t id) const;
  int64_t make_number() const;
  int64_t max_queued() const;

  std::filesystem::path root_;
};

}  // namespace lockstep::daemon
