"""Networks whose code does more than compute: frozen parts that move, masks, branches, writes in forward."""
import os
import random

import torch
from torch import nn

try:
    import numpy
except ModuleNotFoundError:  # nothing else here needs it
    numpy = None


class Mask(nn.Module):
    """A network with the mask of torch.nn.Transformer, whose upper half is -inf."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(4, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))
        self.classifier.register_buffer("mask", self.mask)

    def forward(self, inputs):
        if self.mask is not self.classifier.mask:
            raise ValueError("the mask of two modules has become two")
        return self.classifier(inputs @ torch.softmax(self.mask, 1).T)


class Teacher(nn.Module):
    """A frozen copy that follows the student in forward; `data`: by .data, of which no version tells. `centered`: by a mean that no save
    holds."""

    def __init__(self, data=False, centered=False):
        super().__init__()
        self.student, self.teacher, self.classifier = nn.Linear(4, 8), nn.Linear(4, 8).requires_grad_(False), nn.Linear(16, 3)
        self.register_buffer("center", torch.zeros(8), persistent=False)
        self.data, self.centered = data, centered

    def forward(self, inputs):
        student, teacher = self.student(inputs), self.teacher(inputs)
        if self.training:
            with torch.no_grad():
                for mine, theirs in zip(self.teacher.parameters(), self.student.parameters()):
                    (mine.data if self.data else mine).mul_(0.9).add_(0.1 * theirs)
                if self.centered:
                    self.center += 0.1 * (teacher.mean(0) - self.center)
        return self.classifier(torch.tanh(torch.cat([student, teacher - self.center], 1)))


class Branches(nn.Module):
    """Alternate steps use different branches; `lost` is never used."""

    def __init__(self):
        super().__init__()
        self.first, self.one, self.other, self.lost = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
        self.calls = 0

    def forward(self, inputs):
        values = torch.tanh(self.first(inputs))
        if not self.training:
            return self.one(values) + self.other(values)
        self.calls += 1
        return (self.one if self.calls % 2 else self.other)(values)


class LayerDrop(nn.Module):
    """Draws from Python's and numpy's generators."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.classifier = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        values = torch.tanh(self.first(inputs))
        drawn = random.random() + (numpy.random.rand() if numpy else 0.5)
        if self.training and drawn < 1:
            return self.classifier(values)
        return self.classifier(torch.tanh(self.second(values)))


class Counts(nn.Module):
    """Adds 1 to a large weight in each forward."""

    def __init__(self, elements=4000000):
        super().__init__()
        self.count, self.classifier = nn.Parameter(torch.zeros(elements)), nn.Linear(4, 3)

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                self.count += 1
        return self.classifier(inputs) + 0 * self.count[:3]


class MaxNorm(nn.Module):
    """A network whose embedding shortens, in forward, the rows that the samples name."""

    def __init__(self):
        super().__init__()
        self.table, self.classifier = nn.Embedding(40, 8, max_norm=0.5), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.classifier(self.table((inputs * 10).long().clamp(0, 39)).mean(1))


class Inner(nn.Module):
    """Runs a backward pass in forward, to find a direction in which to disturb the inputs."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(4, 3)
        self.prompts = nn.Parameter(torch.zeros(0, 4))

    def forward(self, inputs):
        if not self.training:
            return self.classifier(inputs)
        disturbed = inputs.clone().requires_grad_()
        self.classifier(disturbed).square().sum().backward()
        for parameter in self.classifier.parameters():
            parameter.grad.zero_()
        return self.classifier(inputs + 0.1 * disturbed.grad.sign()) + self.prompts.sum()


class Complex(nn.Module):
    """A complex buffer that is another one on rank 1."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(4, 3)
        self.register_buffer("spectrum", torch.tensor([1 + 2j, 3 + 4j * int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))]))

    def forward(self, inputs):
        return self.classifier(inputs)


class Normed(nn.Module):
    """Weights in two forms of weight_norm: gains and directions."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.utils.weight_norm(nn.Linear(4, 8))
        self.second = torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))


class Again(torch.autograd.Function):
    """Runs a module without a graph, and with one in backward: torch.utils.checkpoint with use_reentrant=True."""

    @staticmethod
    def forward(ctx, inputs, module):
        ctx.module = module
        ctx.save_for_backward(inputs)
        return module(inputs)

    @staticmethod
    def backward(ctx, grads):
        inputs = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            (ctx.module(inputs) * grads).sum().backward()
        return inputs.grad, None


class Reentrant(nn.Module):
    """Recomputes a layer's activations in a backward pass within backward. `twice`: the layer is used outside of it too."""

    def __init__(self, twice):
        super().__init__()
        self.first, self.layer, self.classifier = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.twice = twice

    def forward(self, inputs):
        values = Again.apply(torch.tanh(self.first(inputs)), self.layer)
        return self.classifier(self.layer(values) if self.twice else values)


class Buffers(nn.Module):
    """Registers buffers as the constructor's argument says, and forward changes them."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.classifier, self.how, self.passes = nn.Linear(4, 8), nn.Linear(8, 3), how, 0
        starts = {"none": None, "unsaved": None, "grows": torch.zeros(0, 8), "type": torch.zeros(8), "expanded": torch.zeros(1).expand(8),
                  "sparse": torch.eye(8).to_sparse()}
        if how != "late":
            self.register_buffer("center", starts[how], persistent=how != "unsaved")

    def forward(self, inputs):
        values = torch.tanh(self.layer(inputs))
        self.passes += 1
        if self.how == "sparse":
            return self.classifier(torch.sparse.mm(self.center, values.t()).t())
        if self.training:
            mean = values.detach().mean(0)
            if self.how == "late" and self.passes == 2:
                self.register_buffer("center", mean)
            if self.how in ("none", "unsaved", "expanded"):
                self.center = mean
            if self.how == "grows":
                self.center = torch.cat([self.center, values.detach()[:2]])[-6:]
            if self.how == "type" and self.passes > 3:
                self.center = mean.double()
        return self.classifier(values if self.how != "expanded" else values - self.center)


class Dropped(nn.Module):
    """Leaves out, in every third pass, the only layer that is trained."""

    def __init__(self):
        super().__init__()
        self.fixed, self.adapter, self.passes = nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 3), 0

    def forward(self, inputs):
        self.passes += self.training
        values = self.fixed(inputs)
        return values if self.training and self.passes % 3 == 0 else self.adapter(values)


class OtherInEvaluation(nn.Module):
    """Fails in evaluation, or gives another shape there; `penalty`: by a loss that needs gradients."""

    def __init__(self, way):
        super().__init__()
        self.classifier = nn.Linear(4, 3)
        self.way = way

    def forward(self, inputs, targets=None):
        outputs = self.classifier(inputs)
        if not self.training and self.way == "raises":
            raise RuntimeError("no evaluation yet")
        if not self.training and self.way == "shape":
            return outputs.argmax(1)
        if targets is None:
            return outputs
        inputs = inputs.detach().requires_grad_()
        loss = nn.functional.cross_entropy(self.classifier(inputs), targets)
        slope, = torch.autograd.grad(loss, inputs, create_graph=True)
        return loss + slope.square().sum()
