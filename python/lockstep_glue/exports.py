"""Exports: a network of the user's in the formats of other programs."""


def save_pretrained(network, folder, max_shard_bytes):
    """Writes the files of a module of transformers, weights included, and returns True. Of another module only its configuration is
    written, if it has one."""
    module = network.module
    config = getattr(module, "config", None)
    if not hasattr(config, "save_pretrained"):
        return False
    import transformers
    if not isinstance(module, transformers.PreTrainedModel):
        config.save_pretrained(folder)
        return False
    transformers.utils.logging.disable_progress_bar()
    module.save_pretrained(folder, max_shard_size=max_shard_bytes)
    return True
