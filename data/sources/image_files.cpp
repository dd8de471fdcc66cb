#include "data/sources/image_files.h"

#include "base/digest.h"
#include "data/files/glob.h"

namespace lockstep::data {

void ImageFiles::read(int64_t index, Record* record) const {
  const files::Reader reader(images_.path(index));
  record->input_storage.resize(static_cast<size_t>(reader.num_bytes()));
  reader.read_at(0, record->input_storage);
  record->input = record->input_storage;
  if (!labels_.empty()) record->label = labels_[static_cast<size_t>(index)];
}

std::string ImageFiles::digest() const {
  std::vector<std::filesystem::path> all = images_.paths();
  all.insert(all.end(), lists_.begin(), lists_.end());
  Sha256 sum;
  sum.add(digest_of_files(all));
  sum.add({reinterpret_cast<const char*>(labels_.data()), labels_.size() * sizeof(int64_t)});
  return sum.hex();
}

bool is_image_name(const std::filesystem::path& path) {
  const std::string ending = lower_ending(path);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

}  // namespace lockstep::data
