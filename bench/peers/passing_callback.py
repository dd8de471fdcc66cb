"""For bench/callbacks: reads two tensors, gives one back."""


class Passing:
    incoming_keys = ["labels", "logits"]
    generated_keys = ["seen"]

    def on_iteration_start(self):
        pass

    def on_iteration_end(self, labels, logits):
        return {"seen": logits}
