#include "dist/sync_options.h"

#include <fmt/format.h>

namespace lockstep::dist {
namespace {

void refuse(YamlFields& in, std::string_view key, std::string_view value,
            std::string_view instead) {
  in.fault(key, fmt::format("'{}: {}' is not in this version: use {}", key, value, instead));
}

}  // namespace

SyncOptions read_sync_options(YamlFields in) {
  SyncOptions options;
  in.read("bucket_bytes", &options.bucket_bytes, at_least(1),
          "bytes of gradients that travel in one message");
  in.read_choice(
      "packed", &options.packed, {"auto", "always", "never"},
      "whether only the gradients of kept weights travel; auto: where that is faster, today never");
  in.read_choice("wire", &options.wire, {"fp32", "bf16", "fp16"},
                 "number format of gradients in messages");
  in.read("shard_optimizer", &options.shard_optimizer,
          "each rank keeps only a share of the optimizer's state");
  in.read("agree_every", &options.agree_every, between(0, 1e9),
          "steps from one comparison of the ranks' whole state to the next (also made at each save "
          "and load); 0: only there");
  in.done();
  if (options.packed == "always") refuse(in, "packed", "always", "auto or never");
  if (options.wire != "fp32") refuse(in, "wire", options.wire, "fp32");
  if (options.shard_optimizer) refuse(in, "shard_optimizer", "true", "false");
  return options;
}

}  // namespace lockstep::dist
