"""Callback for bench/callbacks: reads two tensors and returns one."""


class Passing:
    incoming_keys = ["labels", "logits"]
    generated_keys = ["seen"]

    def on_iteration_start(self):
        pass

    def on_iteration_end(self, labels, logits):
        return {"seen": logits}
