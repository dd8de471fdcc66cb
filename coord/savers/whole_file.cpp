#include "coord/savers/whole_file.h"

#include <system_error>
#include <utility>

namespace lockstep::coord {

WholeFile::WholeFile(std::filesystem::path path)
    : path_(std::move(path)), part_(path_.string() + ".part") {
  writer_.emplace(part_);
}

WholeFile::~WholeFile() {
  if (!writer_.has_value()) return;
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
}

void WholeFile::publish(bool durably) {
  // Sync before the rename: otherwise a power failure could leave an empty file with the final
  // name.
  if (durably) writer_->sync();
  writer_->close();
  files::rename_file(part_, path_);
  writer_.reset();
  // The rename is durable only after the folder's sync.
  if (durably) files::sync_folder(path_.parent_path());
}

}  // namespace lockstep::coord
