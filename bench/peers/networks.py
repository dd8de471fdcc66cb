"""Lockstep's networks in PyTorch, with the same names of parameters."""
import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}
CNN_CHANNELS, CNN_HIDDEN = (64, 64, 128, 128), 240


class Mlp(nn.Module):
    """Linear layers layers.0, layers.1, ... with an activation between (model/networks/small_networks.h)."""

    def __init__(self, widths, activation="relu"):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*ends) for ends in zip(widths, widths[1:]))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, values):
        values = self.layers[0](values.flatten(1))
        for layer in self.layers[1:]:
            values = layer(self.activation(values))
        return values


class Cnn(nn.Module):
    """Images 3x32x32: 3x3 convolutions with ReLU, a maximum pool after every second one, two linear layers (model/networks/small_networks.h)."""

    def __init__(self, num_classes=10):
        super().__init__()
        ends = zip((3, *CNN_CHANNELS), CNN_CHANNELS)
        self.blocks = nn.ModuleList(nn.ModuleDict({"conv": nn.Conv2d(*end, kernel_size=3, padding=1)}) for end in ends)
        self.hidden = nn.Linear(CNN_CHANNELS[-1] * 8 * 8, CNN_HIDDEN)
        self.classifier = nn.Linear(CNN_HIDDEN, num_classes)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, values):
        for i, block in enumerate(self.blocks):
            values = self.relu(block["conv"](values))
            if i % 2:
                values = self.pool(values)
        return self.classifier(self.relu(self.hidden(values.flatten(1))))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and their shortcut."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or before != channels:
            self.downsample = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, values):
        around = values if self.downsample is None else self.downsample(values)
        values = F.relu(self.bn1(self.conv1(values)), inplace=True)
        return F.relu(self.bn2(self.conv2(values)) + around, inplace=True)


class ResNet18(nn.Module):
    """torchvision's names, with the stem for images of 32 pixels: one 3x3 convolution, no pooling."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        before = 64
        for number, channels in enumerate((64, 128, 256, 512), 1):
            stride = 1 if number == 1 else 2
            self.add_module(f"layer{number}", nn.Sequential(BasicBlock(before, channels, stride), BasicBlock(channels, channels, 1)))
            before = channels
        self.fc = nn.Linear(before, num_classes)

    def forward(self, values):
        values = F.relu(self.bn1(self.conv1(values)), inplace=True)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            values = layer(values)
        return self.fc(values.mean([2, 3]))


class GptBlock(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width, bias=bias), "c_proj": nn.Linear(width, width, bias=bias)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width, bias=bias), "c_proj": nn.Linear(4 * width, width, bias=bias)})

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.attn.c_attn(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    """The shape and names of nanoGPT."""

    def __init__(self, vocabulary, context, layers, heads, width, bias=True):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList([GptBlock(width, heads, bias) for _ in range(layers)]), "ln_f": nn.LayerNorm(width, bias=bias)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def bert(layers, width, vocabulary, context):
    """BERT of transformers, which returns its loss."""
    import transformers
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width,
        max_position_embeddings=context, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
