"""Check that all ranks have created the same variables; errors show the first difference."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.objects import Title, allgather_object
from tf_hvd.core.process_sets import global_process_set
from tf_hvd.core.tensorflow_hooks import member_name
from tf_hvd.keras.fit_config import by_rank
from tf_hvd.training import agreement

_VARIABLES = Title("BroadcastGlobalVariablesCallback: variables that exist")


def _shown(variable: Any) -> tuple[str, str]:
    """A variable's name without counters, and a text with its dtype and shape."""
    shape = list(variable.shape)
    # The name of an optimizer's slot contains the numbered names of the model and layer.
    name = re.sub(r"_\d+(?=[/_]|$)", "", member_name(variable) or variable.name)
    return name, f"{tf.as_dtype(variable.dtype).name}{shape}"


def exist_everywhere(variables: Sequence[Any], built: bool) -> bool:
    """Whether all ranks of the job have variables of these shapes, in this order.

    Names are ignored, because each Keras process numbers them separately.
    """
    if not (agreement.takes_part(global_process_set) and tf.executing_eagerly()):
        return True
    text = repr((built, [_shown(variable)[1] for variable in variables]))
    return not agreement.texts_differ(text, global_process_set, _VARIABLES)


def check(variables: Sequence[Any], when: str) -> None:
    """Raise the same error on all ranks unless all ranks have the same variables.

    `when` is the time of the check, such as "after the first batch". The error text includes it.
    """
    if exist_everywhere(variables, True):
        return
    known: list[dict[str, list[str]]] = []
    for mine in allgather_object([_shown(v) for v in variables], name=_VARIABLES):
        known.append({})
        for name, shape in mine:
            known[-1].setdefault(name, []).append(shape)
    for name in dict.fromkeys(name for mine in known for name in mine):
        # In tf_keras, a slot has the same name as its variable, and comes after the variable.
        for shapes in itertools.zip_longest(
            *(mine.get(name, []) for mine in known), fillvalue="no such variable"
        ):
            if len(set(shapes)) > 1:
                raise ValueError(
                    f"BroadcastGlobalVariablesCallback: the ranks have different variables "
                    f"{when}. The first difference is {name!r}: "
                    f"{by_rank(shapes, range(len(shapes)))}. Create the same layers with the same "
                    "sizes, and build the same optimizer, on all ranks before fit()."
                )
