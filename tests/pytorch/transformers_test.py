"""Models of transformers in a loop with lockstep.DataParallel: losses of DistributedDataParallel over gloo. Nothing is downloaded."""
import os
import tempfile
import unittest

import ranks
from ranks import dist, torch
import lockstep
import torch._dynamo  # noqa: F401, which optimizers import: here once for all forked ranks
import transformers

NUM_STEPS, VOCABULARY, LENGTH, TOLERANCE = 5, 50, 12, 1e-5
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {  # tied weights, a classifier, an encoder with a decoder, pictures, and experts that a step may not use
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0)),
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_labels=3, **SMALL, **NO_DROPOUT)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)),
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=8, num_labels=3, **SMALL, **NO_DROPOUT)),
    "experts": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=LENGTH, **SMALL))}


def model_of(kind):
    torch.manual_seed(0)
    return MODELS[kind]()


def batch(kind, step, num_samples=4):
    """Keywords of forward; labels of -100 count in no loss."""
    draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
    tokens = torch.randint(1, VOCABULARY, (num_samples, LENGTH), generator=draw)
    classes = torch.randint(0, 3, (num_samples,), generator=draw)
    if kind == "vit":
        return {"pixel_values": torch.randn(num_samples, 3, 16, 16, generator=draw), "labels": classes}
    if kind == "bert":
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": classes}
    return {"input_ids": tokens, "labels": tokens.where(torch.rand(tokens.shape, generator=draw) < 0.8, -100)}


def losses(kind, wrapper, checkpoints_activations):
    """Losses of this rank; wrapper: ddp or lockstep."""
    network = model_of(kind)
    if checkpoints_activations:
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    model = (torch.nn.parallel.DistributedDataParallel(network, find_unused_parameters=True) if wrapper == "ddp"
             else lockstep.DataParallel(network, optimizer, timeout=ranks.LIMIT_S))
    found = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = model(**batch(kind, step)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


def tied_weights_after_a_restore(folder):
    """Pairs (saved, restored) of a weight that has two names, and the type of the outputs of an uneven last batch."""
    data = [{"input_ids": torch.arange(LENGTH) + i, "labels": torch.arange(LENGTH) + i} for i in range(11)]
    network = model_of("gpt2")
    optimizer = torch.optim.AdamW(network.parameters())
    sampler = lockstep.DistributedSampler(data, 4)
    model = lockstep.DataParallel(network, optimizer, sampler=sampler)
    for items in torch.utils.data.DataLoader(data, batch_size=sampler.batch_size, sampler=sampler):
        optimizer.zero_grad()
        outputs = model(**items)
        outputs.loss.backward()
        optimizer.step()
    lockstep.save(model, folder, wait=True)
    saved = network.lm_head.weight.detach().clone()
    with torch.no_grad():
        network.transformer.wte.weight.zero_()
    lockstep.restore(model, folder)
    return model.step, torch.equal(saved, network.lm_head.weight), type(outputs).__name__


class Loop(unittest.TestCase):
    def test_losses_are_those_of_ddp(self):
        for kind in MODELS:
            theirs = ranks.values(2, losses, kind, "ddp", False, backend="gloo")
            for checkpoints_activations in (False, True):
                with self.subTest(kind, checkpoints_activations=checkpoints_activations):
                    ours = ranks.values(2, losses, kind, "lockstep", checkpoints_activations, backend="gloo")
                    for rank in range(2):
                        for one, other in zip(ours[rank], theirs[rank], strict=True):
                            self.assertAlmostEqual(one, other, delta=TOLERANCE)

    def test_tied_weights_and_dataclasses(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-transformers-") as folder:
            for found in ranks.values(2, tied_weights_after_a_restore, os.path.join(folder, "saves"), backend="gloo"):
                self.assertEqual(found, (3, True, "CausalLMOutputWithCrossAttentions"))


if __name__ == "__main__":
    unittest.main()
