"""Networks of transformers_test.py: tiny ones of transformers, from their configurations."""
import transformers
from keyword_nets import Lazy, Needs, Tuples  # noqa: F401, of tests without transformers too

transformers.logging.set_verbosity_error()
COMMON = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(head="ForMaskedLM", checkpointing=None, **settings):
    config = transformers.BertConfig(**{**COMMON, **DRY, "max_position_embeddings": 32, "num_labels": 3, **settings})
    return checkpointed(getattr(transformers, f"Bert{head}")(config), checkpointing)


def gpt2(checkpointing=None, dropout=0.0, **settings):
    config = transformers.GPT2Config(**{"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0,
                                        "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout, "use_cache": False, **settings})
    return checkpointed(transformers.GPT2LMHeadModel(config), checkpointing)


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**{**COMMON, **DRY, "image_size": 8, "patch_size": 4, "num_labels": 3}))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0))


def mixtral(**settings):
    """A mixture of experts. Its balance loss is a mean over a batch of its own, so it is off by default."""
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **{**COMMON, "num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 32, "use_cache": False, **settings}))


def checkpointed(model, way):
    """way: reentrant, plain, or None: keep all activations."""
    if way is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": way == "reentrant"})
    return model
