#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <jpeglib.h>
#include <png.h>

/// Images to be read, small and with known pixels.
namespace lockstep::data::written {

/// [H, W, C] of a smooth pattern, which JPEG keeps.
inline std::vector<uint8_t> smooth_pixels(int height, int width, int channels) {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        pixels.push_back(static_cast<uint8_t>((3 * y + 5 * x + 40 * c) % 200));
  return pixels;
}

/// PNG_FORMAT_RGB, _GRAY, _RGBA, ...; PNG_FORMAT_LINEAR_Y for 16 bits.
inline std::string png_of(const void* pixels, int height, int width, unsigned format) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<unsigned>(width);
  image.height = static_cast<unsigned>(height);
  image.format = format;
  png_alloc_size_t num_bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(num_bytes, '\0');
  if (png_image_write_to_memory(&image, bytes.data(), &num_bytes, 0, pixels, 0, nullptr) == 0)
    std::abort();
  bytes.resize(num_bytes);
  return bytes;
}

/// 1, 3 or 4 (CMYK, inverted as Adobe has it) channels.
inline std::string jpeg_of(const uint8_t* pixels, int height, int width, int channels,
                           int quality = 95) {
  jpeg_compress_struct codec{};
  jpeg_error_mgr errors{};
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* memory = nullptr;
  unsigned long num_bytes = 0;  // NOLINT: libjpeg's type
  jpeg_mem_dest(&codec, &memory, &num_bytes);
  codec.image_height = static_cast<unsigned>(height);
  codec.image_width = static_cast<unsigned>(width);
  codec.input_components = channels;
  codec.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, quality, TRUE);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    auto* row = const_cast<JSAMPLE*>(pixels + codec.next_scanline * codec.image_width *
                                                  static_cast<unsigned>(channels));
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  std::string bytes(reinterpret_cast<const char*>(memory), num_bytes);
  jpeg_destroy_compress(&codec);
  std::free(memory);
  return bytes;
}

}  // namespace lockstep::data::written
