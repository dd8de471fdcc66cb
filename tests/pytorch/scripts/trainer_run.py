"""The form of the Trainer of transformers, with a tiny GPT-2 from its configuration: torchrun ... trainer_run.py BACKEND FOLDER

On CPUs, the Trainer takes gloo unless a process group exists, so the script creates one before.
"""
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import lockstep  # noqa: F401, which registers the backend


class Sequences(torch.utils.data.Dataset):
    """Arithmetic progressions of different lengths."""

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return {"input_ids": (torch.arange(6 + index % 5) * (index % 7 + 1) + index) % 50}


def collate(samples):
    """Pads with token 0, which attention and loss ignore."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    batch = {"input_ids": torch.zeros(len(samples), longest, dtype=torch.int64), "attention_mask": torch.zeros(len(samples), longest, dtype=torch.int64),
             "labels": torch.full((len(samples), longest), -100)}
    for row, sample in enumerate(samples):
        length = len(sample["input_ids"])
        batch["input_ids"][row, :length] = batch["labels"][row, :length] = sample["input_ids"]
        batch["attention_mask"][row, :length] = 1
    return batch


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        for key in ("loss", "grad_norm", "eval_loss", "train_loss"):
            if key in logs:
                print(f"{key.rpartition('_')[2]} {logs[key]!r} ({key})")


def main(backend, folder):
    torch.distributed.init_process_group(backend)
    set_seed(11)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(output_dir=folder, use_cpu=True, num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                                  learning_rate=1e-3, logging_steps=1, eval_strategy="epoch", save_strategy="epoch", report_to="none",
                                  disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sequences(60), eval_dataset=Sequences(10), data_collator=collate,
                      callbacks=[PrintLosses()])
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
