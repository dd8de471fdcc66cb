#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Appends `data` framed as a TFRecord. A frame is the length (8 bytes, little endian), its masked
/// crc32c, the data, and the data's masked crc32c. tf.data.TFRecordDataset reads such files.
/// TensorBoard does if the data are Event messages.
///
///     std::string records;
///     for (const std::string& message : messages) append_tf_record(message, &records);
///     writer.append(records);
///
/// Source: tensorflow/core/lib/io/record_writer.h.
void append_tf_record(std::string_view data, std::string* records);

}  // namespace lockstep
