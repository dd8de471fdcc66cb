#include <algorithm>
#include <csetjmp>
#include <cstring>

#include <png.h>

#include "data/images/decode.h"

namespace lockstep::data {
namespace {

/// Decoder. libpng's errors end in longjmp, so functions on the way must have no destructors.
class PngReader {
 public:
  explicit PngReader(std::string_view file) : rest_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, end_decoding, ignore_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Reads up to the pixels. Returns false after an error.
  bool begin(int64_t channels) {
    if (info_ == nullptr) return false;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, take_bytes);
    png_read_info(png_, info_);
    png_set_expand(png_);  // palettes, fewer than 8 bits
    png_set_scale_16(png_);
    png_set_strip_alpha(png_);
    const bool is_grey = (png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR) == 0;
    if (is_grey && channels == 3) png_set_gray_to_rgb(png_);
    num_passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    // libpng's own conversion to grey uses the file's gamma; other programs do not.
    becomes_grey_ = !is_grey && channels == 1;
    return true;
  }
  bool becomes_grey() const { return becomes_grey_; }
  size_t height() const { return png_get_image_height(png_, info_); }
  size_t width() const { return png_get_image_width(png_, info_); }
  size_t row_bytes() const { return png_get_rowbytes(png_, info_); }

  bool read_rows(uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // Interlaced images need several passes over all rows.
    for (int pass = 0; pass < num_passes_; ++pass)
      for (size_t row = 0; row < height(); ++row)
        png_read_row(png_, pixels + row * row_bytes(), nullptr);
    png_read_end(png_, nullptr);
    return true;
  }
  std::string fault() const { return fault_; }

 private:
  [[noreturn]] static void end_decoding(png_structp png, png_const_charp text) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->fault_, text, sizeof self->fault_ - 1);
    png_longjmp(png, 1);
  }
  static void ignore_warning(png_structp /*png*/, png_const_charp /*text*/) {}
  static void take_bytes(png_structp png, png_bytep bytes, size_t num_bytes) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (num_bytes > self->rest_.size()) png_error(png, "is cut short");
    std::memcpy(bytes, self->rest_.data(), num_bytes);
    self->rest_.remove_prefix(num_bytes);
  }

  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int num_passes_ = 1;
  bool becomes_grey_ = false;
  char fault_[160] = "no memory";
};

}  // namespace

Pixels decode_png(std::string_view file, int64_t channels, std::vector<uint8_t>* storage) {
  PngReader reader(file);
  if (!reader.begin(channels)) refuse_image(reader.fault());
  storage->resize(reader.height() * reader.row_bytes());
  if (!reader.read_rows(storage->data())) refuse_image(reader.fault());
  if (reader.becomes_grey()) grey_of_rgb(storage->data(), reader.height() * reader.width());
  return {storage->data(), static_cast<int64_t>(reader.height()),
          static_cast<int64_t>(reader.width()), channels, true};
}

}  // namespace lockstep::data
