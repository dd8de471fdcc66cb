"""Large linear layers in lockstep.DataParallel, whose weights get their gradients in the loop's buffers: gradients are PyTorch's, however
the loop and autograd use the layers."""
import copy
import gc
import io
import unittest

import ranks
from ranks import torch

import lockstep

nn, F = torch.nn, torch.nn.functional
SIZE = 1024  # a weight of 2^20 elements, the smallest large one


class Net(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE, bias=bias), nn.Linear(SIZE, SIZE, bias=bias)
        self.head = nn.Linear(SIZE, 3)

    def forward(self, x):
        return self.head(F.gelu(self.second(F.gelu(self.first(x)))))


class Tied(Net):
    """One weight by two layers and by a function: three sources of its gradient."""

    def __init__(self):
        super().__init__()
        self.second.weight = self.first.weight

    def forward(self, x):
        return super().forward(F.linear(x, self.first.weight))


class Recomputing(Net):
    def forward(self, x):
        return self.head(torch.utils.checkpoint.checkpoint(lambda x: F.gelu(self.second(self.first(x))), x, use_reentrant=False))


class Lists(Net):
    """Sequences: inputs of three dimensions, and not contiguous ones."""

    def forward(self, x):
        return super().forward(x.view(-1, 2, SIZE).transpose(0, 1)).mean((0, 1))[None]


def batch(num_samples, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_samples, SIZE, generator=generator)


def loss_of(network, x):
    return network(x).square().mean()


def wrapped(make=Net, **more):
    """The network, wrapped for one rank, and a copy as PyTorch has it."""
    torch.manual_seed(1)
    network = make()
    reference = copy.deepcopy(network)
    model = lockstep.DataParallel(network, torch.optim.SGD(network.parameters(), lr=0.1), **more)
    return model, network, reference


class LargeLayers(unittest.TestCase):
    def assert_close(self, found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)

    def assert_equal_grads(self, network, reference):
        for (name, own), theirs in zip(network.named_parameters(), reference.parameters(), strict=True):
            with self.subTest(parameter=name):
                self.assertEqual(own.grad is None, theirs.grad is None)
                if own.grad is not None:
                    self.assert_close(own.grad, theirs.grad)

    def writes_in_place(self, network, x):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loss_of(network, x).backward()
        return any("ProductInto" in event.name for event in profile.events())

    def test_gradients_are_pytorchs_for_each_number_of_samples(self):
        for num_samples in (1, 2, 8, 17):
            for bias in (True, False):
                with self.subTest(samples=num_samples, bias=bias):
                    model, network, reference = wrapped(lambda bias=bias: Net(bias))
                    x = batch(num_samples).requires_grad_()
                    own = torch.autograd.grad(loss_of(reference, x), x)[0]
                    loss_of(reference, batch(num_samples)).backward()
                    loss_of(model, x).backward()
                    self.assert_equal_grads(network, reference)
                    self.assert_close(x.grad, own)
                    model.close()

    def test_the_layers_of_a_wrapped_module_write_and_those_of_a_closed_one_do_not(self):
        model, network, _ = wrapped()
        self.assertTrue(self.writes_in_place(model, batch(4)))
        model.close()
        model.close()
        network.zero_grad()
        self.assertFalse(self.writes_in_place(network, batch(4)))
        self.assertNotIn("forward", network.first.__dict__)

    def test_the_layers_train_on_when_the_wrapped_module_is_gone(self):
        model, network, reference = wrapped()
        loss_of(model, batch(4)).backward()
        del model
        gc.collect()
        network.zero_grad()
        loss_of(network, batch(4)).backward()
        loss_of(reference, batch(4)).backward()
        self.assert_equal_grads(network, reference)

    def test_passes_add_whether_gradients_were_dropped_zeroed_or_kept(self):
        for to_none in (True, False, None):
            with self.subTest(set_to_none=to_none):
                model, network, reference = wrapped()
                for step in range(3):
                    for one in (model, reference):
                        if to_none is not None:
                            one.zero_grad(set_to_none=to_none)
                        with model.no_sync():
                            loss_of(one, batch(4, seed=step)).backward()
                        loss_of(one, batch(3, seed=step + 9)).backward()
                    self.assert_equal_grads(network, reference)
                model.close()

    def test_weights_with_several_sources_lists_and_recomputed_layers(self):
        for make in (Tied, Lists, Recomputing):
            with self.subTest(network=make.__name__):
                model, network, reference = wrapped(make)
                for _ in range(2):
                    loss_of(reference, batch(4)).backward()
                    loss_of(model, batch(4)).backward()
                self.assert_equal_grads(network, reference)
                model.close()

    def test_a_retained_graph_adds_twice(self):
        model, network, reference = wrapped()
        for one in (model, reference):
            loss = loss_of(one, batch(4))
            with model.no_sync():
                loss.backward(retain_graph=True)
        self.assert_equal_grads(network, reference)

    def test_second_derivatives_and_gradients_by_hand(self):
        model, network, reference = wrapped()

        def penalised(one):
            x = batch(4).requires_grad_()
            inner, of_weight = torch.autograd.grad(loss_of(one, x), (x, list(one.parameters())[0]), create_graph=True)
            return inner.square().sum() + of_weight.square().sum() + loss_of(one, x)
        penalised(reference).backward()
        penalised(model).backward()
        self.assert_equal_grads(network, reference)
        model.zero_grad()
        found = torch.autograd.grad(loss_of(model, batch(4)), list(network.parameters()))
        self.assertTrue(all(parameter.grad is None for parameter in network.parameters()))
        for own, theirs in zip(found, torch.autograd.grad(loss_of(reference, batch(4)), list(reference.parameters())), strict=True):
            self.assert_close(own, theirs)

    def test_hooks_see_the_gradient(self):
        model, network, reference = wrapped()
        seen = []
        for one in (network, reference):
            one.first.weight.register_hook(lambda grad: 2 * grad)
            one.second.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
        loss_of(model, batch(4)).backward()
        loss_of(reference, batch(4)).backward()
        self.assert_equal_grads(network, reference)
        self.assert_close(*seen)

    def test_autocast_transforms_and_compiled_modules(self):
        model, network, reference = wrapped()
        x = batch(4)
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(model, x).backward()
            loss_of(reference, x).backward()
        for own, theirs in zip(network.parameters(), reference.parameters(), strict=True):
            self.assertTrue(torch.equal(own.grad, theirs.grad))
        weights = {name: parameter.detach() for name, parameter in network.named_parameters()}

        def of(weights, x):
            return torch.func.functional_call(network, weights, (x[None],)).square().mean()
        one_by_one = torch.func.vmap(torch.func.grad(of), in_dims=(None, 0))(weights, x)
        whole = torch.func.grad(lambda weights: torch.func.functional_call(network, weights, (x,)).square().mean())(weights)
        self.assert_close(one_by_one["first.weight"].mean(0), whole["first.weight"])
        compiled = torch.compile(network, backend="eager")  # without a graph break
        self.assert_close(torch._dynamo.explain(network)(x).graph_break_count, 0)
        self.assert_close(compiled(x), reference(x))
        tangent = torch.func.jvp(network, (x,), (x,))[1]
        self.assert_close(tangent, torch.func.jvp(reference, (x,), (x,))[1])
        self.assert_close(torch.jit.trace(network, x)(batch(5)), reference(batch(5)))

    def test_copies_and_files_of_the_module_are_of_their_own(self):
        model, network, _ = wrapped()
        loss_of(model, batch(4)).backward()
        before = network.first.weight.grad.clone()
        file = io.BytesIO()
        torch.save(network, file)
        file.seek(0)
        for other in (copy.deepcopy(network), torch.load(file, weights_only=False)):
            other.zero_grad()
            loss_of(other, batch(4)).backward()
            self.assert_close(other.first.weight.grad, before)
            with torch.no_grad():
                other.first.weight.zero_()
            self.assertEqual(other(batch(4)).shape, (4, 3))
        self.assertTrue(torch.equal(network.first.weight.grad, before))
        self.assertGreater(network.first.weight.abs().max().item(), 0)

    def test_a_wrong_shape_has_pytorchs_message(self):
        model, _, reference = wrapped()
        for one in (model, reference):
            with self.assertRaisesRegex(RuntimeError, "mat1 and mat2 shapes cannot be multiplied"):
                one(torch.zeros(4, SIZE + 1))


if __name__ == "__main__":
    unittest.main()
