"""A BERT from its configuration, and sequences of different lengths for it. Nothing is downloaded."""
import torch
from transformers import BertConfig, BertForSequenceClassification

VOCABULARY, LONGEST, MASKED = 40, 16, 0


def bert(hidden_size, num_hidden_layers):
    """Called with an item's keys as keywords, it returns the loss, since there are labels."""
    return BertForSequenceClassification(BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden_size, num_hidden_layers=num_hidden_layers, num_attention_heads=4,
        intermediate_size=4 * hidden_size, max_position_embeddings=LONGEST, num_labels=2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0))


class Sequences(torch.utils.data.Dataset):
    """Random tokens; the class says whether most of them are even numbers."""
    num_classes = 2

    def __init__(self, samples, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, VOCABULARY, (samples, LONGEST), generator=draw)
        self.lengths = torch.randint(LONGEST // 2, LONGEST + 1, (samples,), generator=draw)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        is_token = torch.arange(LONGEST) < self.lengths[index]
        tokens = self.tokens[index]
        num_odd = int((tokens % 2)[is_token].sum())
        return {"input_ids": tokens.where(is_token, MASKED), "attention_mask": is_token.long(), "labels": int(2 * num_odd < self.lengths[index])}
