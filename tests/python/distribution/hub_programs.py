"""Programs with small models of KerasHub; `hub_programs.py OUT` writes their results.

`./dev prove keras` installs KerasHub and runs them. The arguments are those of `programs.py`.
"""

import keras
import keras_hub
import numpy as np
import programs
from common import PROGRAMS, UNEVEN, batches, classes, layers, program, results, trained

PROGRAMS.clear()


def _tokens():
    generator = np.random.default_rng(0)
    return generator.integers(1, 30, size=(UNEVEN, 9))


def _present():
    return (np.arange(9) <= np.arange(UNEVEN)[:, None] % 8 + 1).astype("int64")


def _fitted(model, x, y, rate=0.1, **options):
    """SGD, because Adam squares equal rows of an embedding one by one."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, **options)
    data = batches(x, y)
    history = trained(model, data)
    return results(model, history, evaluated=model.evaluate(data, verbose=0))


@program
def gpt2():
    shape = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = keras_hub.models.GPT2Backbone(30, **shape, max_sequence_length=8)
    model = keras_hub.models.GPT2CausalLM(backbone)
    ids, present = _tokens(), _present()
    x = {"token_ids": ids[:, :-1], "padding_mask": present[:, :-1]}
    return _fitted(model, x, ids[:, 1:], weighted_metrics=["accuracy"])


@program
def bert():
    shape = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = keras_hub.models.BertBackbone(30, **shape, max_sequence_length=9)
    model = keras_hub.models.BertTextClassifier(backbone, 3)
    x = {"token_ids": _tokens(), "padding_mask": _present()}
    x["segment_ids"] = np.zeros_like(x["token_ids"])
    return _fitted(model, x, classes(UNEVEN)[1], metrics=["accuracy"])


@program
def resnet():
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64, 8],
        stackwise_num_blocks=[1, 1], stackwise_num_strides=[1, 2], block_type="basic_block",
        image_shape=(16, 16, 3),
    )  # fmt: skip
    model = keras_hub.models.ResNetImageClassifier(backbone, 3)
    images = np.random.default_rng(0).normal(size=(UNEVEN, 16, 16, 3))
    return _fitted(model, images, classes(UNEVEN)[1], metrics=["accuracy"])


@program
def vit():
    backbone = keras_hub.models.ViTBackbone((16, 16, 3), (8, 8), 2, 2, 8, 16, dropout_rate=0.1)
    outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(backbone.output))
    images = np.random.default_rng(0).normal(size=(UNEVEN, 16, 16, 3))
    return _fitted(keras.Model(backbone.input, outputs), images, classes(UNEVEN)[1])


if __name__ == "__main__":
    programs.main()
