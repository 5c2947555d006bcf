"""Whether all ranks have made the same variables by now; an error names those that some lack."""

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
    """What a variable is known by on all ranks: a name without counts, and a shape with a dtype."""
    shape = list(variable.shape)
    # An optimizer's slot has the counted names of model and layer in its own.
    name = re.sub(r"_\d+(?=[/_]|$)", "", member_name(variable) or variable.name)
    return name, f"{tf.as_dtype(variable.dtype).name}{shape}"


def exist_everywhere(variables: Sequence[Any], built: bool) -> bool:
    """Whether all ranks of the job have variables of these shapes, in this order.

    Their names do not count: Keras numbers them in each process by itself.
    """
    if not (agreement.takes_part(global_process_set) and tf.executing_eagerly()):
        return True
    text = repr((built, [_shown(variable)[1] for variable in variables]))
    return not agreement.texts_differ(text, global_process_set, _VARIABLES)


def check(variables: Sequence[Any], when: str) -> None:
    """Raises unless all ranks have the same variables; on all ranks, with the same text."""
    if exist_everywhere(variables, True):
        return
    known: list[dict[str, list[str]]] = []
    for mine in allgather_object([_shown(v) for v in variables], name=_VARIABLES):
        known.append({})
        for name, shape in mine:
            known[-1].setdefault(name, []).append(shape)
    for name in dict.fromkeys(name for mine in known for name in mine):
        # A slot of tf_keras' optimizers is called as its variable, and comes after it.
        for shapes in itertools.zip_longest(
            *(mine.get(name, []) for mine in known), fillvalue="no such variable"
        ):
            if len(set(shapes)) > 1:
                raise ValueError(
                    f"BroadcastGlobalVariablesCallback: the ranks do not have the same variables "
                    f"{when}. The first that differs is {name!r}: "
                    f"{by_rank(shapes, range(len(shapes)))}. Make the same layers of the same "
                    "sizes, and build the same optimizer, on all ranks before fit()."
                )
