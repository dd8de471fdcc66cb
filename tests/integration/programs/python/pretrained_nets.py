"""Networks of transformers from tiny configurations, whose forward takes one tensor and returns one."""
import torch
import transformers


class Gpt2(transformers.GPT2LMHeadModel):
    """Its output layer is tied to its embedding."""

    def __init__(self):
        super().__init__(transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=30, n_positions=8, bos_token_id=0, eos_token_id=1))

    def forward(self, inputs):
        return super().forward(inputs).logits


class Bert(transformers.BertForMaskedLM):
    def __init__(self):
        super().__init__(transformers.BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=30,
                                                 max_position_embeddings=8))

    def forward(self, inputs):
        return super().forward(inputs).logits


class T5(transformers.T5ForConditionalGeneration):
    """One embedding for encoder, decoder and output."""

    def __init__(self):
        super().__init__(transformers.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=30, decoder_start_token_id=0))

    def forward(self, inputs):
        return super().forward(input_ids=inputs, decoder_input_ids=inputs).logits


class Mixtral(transformers.MixtralForCausalLM):
    """Files name the weights of each expert, the module one tensor of all."""

    def __init__(self):
        super().__init__(transformers.MixtralConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                                    num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2, vocab_size=30))

    def forward(self, inputs):
        return super().forward(inputs).logits


class Vit(transformers.ViTForImageClassification):
    def __init__(self):
        super().__init__(transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=8,
                                                patch_size=4, num_channels=1, num_labels=10))

    def forward(self, inputs):
        return super().forward(inputs).logits


class WideVit(Vit):
    """Two classes more."""

    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Linear(16, 12)
