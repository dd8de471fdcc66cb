"""TensorFlow and Lockstep's Checkpoint objects restore each other's saves.

usage: library_oracle.py LIBRARY_EXCHANGE
"""
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf

EXCHANGE = sys.argv[1]
INPUTS = np.arange(6, dtype=np.float32).reshape(2, 3) / 6


def exchange(*words, code=0):
    done = subprocess.run([EXCHANGE, *words], check=False, capture_output=True, text=True)
    assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return (done.stdout if code == 0 else done.stderr).strip()


def outputs(*words):
    return np.array([float(word) for word in exchange(*words).split()], np.float32).reshape(2, 2)


class Part(tf.Module):
    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def zeros(*shape):
    return tf.Variable(tf.zeros(shape))


class Objects:
    """The MLP and SGD's momentum as torch::nn and torch::optim name them."""

    def __init__(self, seed=None):
        self.model = Part(fc1=self.layer(4, 3), fc2=self.layer(2, 4))
        slots = Part(fc1=self.slots(4, 3), fc2=self.slots(2, 4))
        self.optimizer = Part(model=slots)
        if seed is not None:
            for i, variable in enumerate(self.model.variables + self.optimizer.variables):
                variable.assign(tf.random.stateless_normal(variable.shape, [seed, i]))
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)

    @staticmethod
    def layer(num_outputs, num_inputs):
        return Part(weight=zeros(num_outputs, num_inputs), bias=zeros(num_outputs))

    @staticmethod
    def slots(num_outputs, num_inputs):
        return Part(weight=Part(momentum_buffer=zeros(num_outputs, num_inputs)),
                    bias=Part(momentum_buffer=zeros(num_outputs)))

    def forward(self):
        hidden = tf.tanh(INPUTS @ tf.transpose(self.model.fc1.weight) + self.model.fc1.bias)
        return (hidden @ tf.transpose(self.model.fc2.weight) + self.model.fc2.bias).numpy()


def check_close(a, b, what):
    assert np.allclose(a, b, atol=1e-6), (what, a, b)


def check_tensorflow_restores_ours(folder):
    prefix = f"{folder}/model.ckpt"
    expected = outputs("save", *[prefix] * 10)
    assert tf.train.latest_checkpoint(folder) == f"{prefix}-10", tf.train.latest_checkpoint(folder)
    assert exchange("latest", folder) == f"{prefix}-10"
    objects = Objects()
    objects.checkpoint.restore(f"{prefix}-10").assert_consumed()
    check_close(objects.forward(), expected, "ours in TensorFlow")
    assert np.abs(objects.optimizer.model.fc1.weight.momentum_buffer.numpy()).max() > 0
    assert objects.checkpoint.save_counter.numpy() == 10
    return objects


def check_we_restore_tensorflows(folder):
    theirs = Objects(seed=3)
    # A second way to the same variables: TensorFlow then names them by one of the two, and only its graph tells.
    checkpoint = tf.train.Checkpoint(a=theirs.model, model=theirs.model, optimizer=theirs.optimizer)
    for number in (1, 2):
        save = checkpoint.save(f"{folder}/twice")
        assert save == f"{folder}/twice-{number}", save
    names = [name for name, _ in tf.train.list_variables(save)]
    assert not any(name.startswith("model/") for name in names), names  # else this shows nothing
    check_close(outputs("restore", save), theirs.forward(), "TensorFlow's here")
    # Our numbers continue TensorFlow's, and TensorFlow's continue ours.
    ours = exchange("again", save, f"{folder}/elsewhere/model.ckpt")
    assert ours == f"{folder}/elsewhere/model.ckpt-3", ours
    back = Objects()
    back.checkpoint.restore(ours).assert_consumed()
    check_close(back.forward(), theirs.forward(), "there and back")
    assert back.checkpoint.save(f"{folder}/elsewhere/model.ckpt").endswith("-4")

    missing = tf.train.Checkpoint(model=theirs.model).save(f"{folder}/part")
    assert "'optimizer/model/fc1/weight/momentum_buffer'" not in exchange("restore", missing), "slots are made, not wanted"
    more = tf.train.Checkpoint(model=theirs.model, optimizer=theirs.optimizer, extra=zeros(2)).save(f"{folder}/more")
    assert "without a variable: 'extra'" in exchange("restore", more, code=65)


def check_name_based(folder):
    """tf.train.Saver knows names alone; TensorFlow's own Checkpoint restores such a file by the variables' names, and so do we."""
    theirs = Objects(seed=4)
    layers = {"fc1": theirs.model.fc1, "fc2": theirs.model.fc2}
    values = {f"{name}/{part}": getattr(layer, part).numpy() for name, layer in layers.items() for part in ("weight", "bias")}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        save = tf.compat.v1.train.Saver(variables).save(session, f"{folder}/by_name", global_step=7)
    names = [name for name, _ in tf.train.list_variables(save)]
    assert names == sorted(values), names
    here = Part(fc1=Part(weight=tf.Variable(tf.zeros((4, 3)), name="fc1/weight"), bias=tf.Variable(tf.zeros(4), name="fc1/bias")))
    tf.train.Checkpoint(model=here).restore(save).expect_partial()  # the judge: by name, whatever the path to the object
    check_close(here.fc1.weight.numpy(), theirs.model.fc1.weight.numpy(), "TensorFlow's own restore by name")
    check_close(outputs("restore_weights", save), theirs.forward(), "by name here")


def check_import(folder):
    """Keras' order of dimensions and its names: of its own layers, and as Keras 2 named them."""
    first, second = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)
    expected = second(first(INPUTS)).numpy()
    save = tf.train.Checkpoint(layers=Part(first=first, second=second), optimizer=Part(m=zeros(3))).save(f"{folder}/keras")
    assert "layers/first/_kernel/.ATTRIBUTES/VARIABLE_VALUE" in dict(tf.train.list_variables(save)), "Keras has other names now"
    check_close(outputs("import", save), expected, "import")
    parts = {name: Part(kernel=tf.Variable(layer.kernel), bias=tf.Variable(layer.bias)) for name, layer in (("first", first), ("second", second))}
    save = tf.train.Checkpoint(layers=Part(**parts), optimizer=Part(m=zeros(3))).save(f"{folder}/keras2")
    check_close(outputs("import", save), expected, "import of Keras 2's names")


class Net(keras.Model):
    """A layer of each kind whose weights lie otherwise here, square ones among them."""

    def __init__(self):
        super().__init__()
        self.conv, self.square_conv = keras.layers.Conv2D(4, 3), keras.layers.Conv2D(3, 3)
        self.depth, self.norm = keras.layers.DepthwiseConv2D(3, depth_multiplier=2), keras.layers.BatchNormalization()
        self.dense, self.square, self.table = keras.layers.Dense(5), keras.layers.Dense(5), keras.layers.Embedding(5, 5)

    def call(self, images):
        hidden = self.square_conv(self.norm(self.depth(self.conv(images)))[..., :3])
        flat = self.square(self.dense(keras.ops.reshape(hidden, (len(images), -1))))
        return flat + self.table(keras.ops.zeros((len(images),), "int32"))


def as_here(layer):
    """Name -> values as PyTorch has them, by what Keras says of its layer."""
    values = {path.rsplit("/", 1)[-1]: variable.numpy() for path, variable in ((v.path, v) for v in layer.weights)}
    if isinstance(layer, keras.layers.DepthwiseConv2D):  # output c * multiplier + m is of channel c
        kernel = values["kernel"]
        return {"weight": kernel.transpose(2, 3, 0, 1).reshape(-1, 1, *kernel.shape[:2]), "bias": values["bias"]}
    if isinstance(layer, keras.layers.Conv2D):
        return {"weight": values["kernel"].transpose(3, 2, 0, 1), "bias": values["bias"]}
    if isinstance(layer, keras.layers.Dense):
        return {"weight": values["kernel"].T, "bias": values["bias"]}
    return {"weight": values["embeddings"]} if isinstance(layer, keras.layers.Embedding) else values


def check_warm_start(folder):
    """Every value that a model of Keras saves is loaded as Keras itself has it."""
    net = Net()
    net(np.zeros((2, 9, 9, 3), np.float32))
    for i, variable in enumerate(net.weights):
        variable.assign(tf.random.stateless_normal(variable.shape, [7, i]))
    data = iter(tf.data.Dataset.range(10).shuffle(4))
    names = ("conv", "square_conv", "depth", "norm", "dense", "square", "table")
    expected = {f"{name}.{end}": values for name in names for end, values in as_here(getattr(net, name)).items()}
    forms = [f"{name}={','.join(map(str, values.shape))}" for name, values in expected.items()]
    saves = {"a model": tf.train.Checkpoint(net=net), "with an iterator": tf.train.Checkpoint(step=tf.Variable(1), net=net, iterator=data)}
    num_values = 0
    for what, checkpoint in saves.items():
        save = checkpoint.save(f"{folder}/warm_{what.replace(' ', '_')}")
        assert exchange("verify", save) == "sound", what
        for kernels in ("auto", "tensorflow"):
            numbers = np.array(exchange("warm", save, kernels, "net", *forms).split(), np.float32)
            for name, values in expected.items():
                here, numbers = numbers[:values.size].reshape(values.shape), numbers[values.size:]
                assert np.array_equal(here, values), (what, kernels, name)
                num_values += 1
    assert num_values == 4 * len(expected) > 40, num_values
    print(num_values, "values of a model of Keras", keras.__version__, "are here as there")
    net.save_weights(f"{folder}/net.weights.h5")
    assert "an HDF5 file: load it in Keras" in exchange("warm", f"{folder}/net.weights.h5", "auto", "net", *forms, code=65)


with tempfile.TemporaryDirectory() as folder:
    check_tensorflow_restores_ours(f"{folder}/ours")
    os.makedirs(f"{folder}/theirs")
    check_we_restore_tensorflows(f"{folder}/theirs")
    check_import(f"{folder}/theirs")
    check_warm_start(f"{folder}/theirs")
    check_name_based(f"{folder}/theirs")
print("TensorFlow", tf.__version__, "and Checkpoint objects restore each other's saves")
