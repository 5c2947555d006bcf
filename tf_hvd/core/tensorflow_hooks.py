"""What the package needs of TensorFlow around its collectives, and all of it that is private.

AutoGraph, interrupts, variables of TensorFlow and of Keras, devices, deprecated arguments. No
other file has a name that TensorFlow keeps to itself (tests/architecture_test.py); those of Keras
are in tf_hvd.keras.compat.
"""

import contextlib
import functools
import inspect
import re
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core
from tensorflow.python.framework import auto_control_deps, ops
from tensorflow.python.ops import (
    control_flow_util,
    resource_variable_ops,
    stateful_random_ops,
)
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

F = TypeVar("F", bound=Callable[..., Any])
State = TypeVar("State")

# A tape puts what it computes under this name scope.
BACKPROP = "gradient_tape/"
# The method by which an object says what a SavedModel or a checkpoint keeps with it.
SAVED_CHILDREN = "_trackable_children"


def executes_eagerly() -> bool:
    """tf.executing_eagerly(), asked as TensorFlow's wrappers of ops do: in a third of its time."""
    return bool((context._context or context.context())._thread_local_data.is_eager)


def verbatim(function: F) -> F:
    """Decorator: AutoGraph calls `function` as it is written.

    A tf.function converts what it calls, and what that calls. Our functions need no
    conversion, and it would cost seconds in each program's first step.

    What is returned shows the signature and the defaults of `function` to everyone
    who asks, also to those who do not look behind a wrapper.
    """
    unconverted: Any = tf.autograph.experimental.do_not_convert(function)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # AutoGraph works where functions are traced, and nowhere else.
        if executes_eagerly():
            return function(*args, **kwargs)
        return unconverted(*args, **kwargs)

    # With what AutoGraph knows a function by that it shall leave as it is.
    functools.update_wrapper(wrapper, unconverted)
    return cast(F, _as_shown(wrapper, function))


def around_a_method(function: Callable[..., Any]) -> Any:
    """Decorator: as `verbatim`, of what calls a method that may be the program's.

    Its first argument makes of that method what AutoGraph makes of the code that calls this.
    """
    unconverted: Any = tf.autograph.experimental.do_not_convert(function)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if executes_eagerly():
            return function(lambda method: method, *args, **kwargs)
        autograph = tf.__internal__.autograph
        around = autograph.control_status_ctx()
        return unconverted(lambda method: autograph.tf_convert(method, around), *args, **kwargs)

    functools.update_wrapper(wrapper, unconverted)
    return _as_shown(wrapper, function)


def _as_shown(wrapper: Any, function: Any) -> Any:
    wrapper.__wrapped__ = function
    wrapper.__defaults__ = function.__defaults__
    wrapper.__kwdefaults__ = function.__kwdefaults__
    wrapper.__signature__ = inspect.signature(function)
    return wrapper


def at_once(
    op_type: str, plans: Mapping[tuple[int | None, int], tuple[Any, ...]], lines: Any
) -> Callable[[F], F]:
    """Decorator of a collective: an eager call with a tensor and `op=` alone is the op at once.

    The function that it makes is the one Python function between the program and the op then. Any
    other call goes the decorated function's way.

    Args:
      op_type: the op's name.
      plans: by `op` and the number of the tensor's dtype, names and values of the op's attributes
        in turn. What is not in it goes the decorated function's way.
      lines: call_sites.
    """

    def decorate(function: F) -> F:
        def call(*args: Any, **kwargs: Any) -> Any:
            op = kwargs.get("op")
            now = context._context
            if (
                len(args) != 1
                or len(kwargs) != ("op" in kwargs)
                or type(args[0]) is not ops.EagerTensor
                or type(op) not in (int, type(None))
                or (plan := plans.get((op, args[0]._datatype_enum()))) is None
                or now is None
                or not now._thread_local_data.is_eager
            ):
                return function(*args, **kwargs)
            graphs = ops._default_graph_stack  # see has_no_strategy
            graph = graphs.stack[-1] if graphs.stack else graphs._global_default_graph
            local = getattr(graph, "_thread_local", None)
            if graph and getattr(local, "_distribution_strategy_stack", None) != []:
                return function(*args, **kwargs)
            frame = sys._getframe(1)
            sites = lines.places.get(id(frame.f_code))
            place = sites.get(frame.f_lasti) if sites else None
            if place is None:
                lines.note_eager_call(2)
            else:
                lines.cell.pointer.value = place
            try:
                return pywrap_tfe.TFE_Py_FastPathExecute(now, op_type, None, *args, *plan)
            except core._NotOkStatusException as error:
                ops.raise_from_not_ok_status(error, None)
            except core._FallbackException:
                return function(*args, **kwargs)

        functools.update_wrapper(call, function)
        return cast(F, _as_shown(call, function))

    return decorate


_ERRORS = ("tensorflow.python.eager.core", "tensorflow.python.framework.errors_impl")


def let_interrupts_through() -> None:
    """A Ctrl-C during an op that then fails is a KeyboardInterrupt, as anywhere else.

    Python looks for signals when it begins a function of its own, and the first one after such an
    op makes the exception that TensorFlow's C++ raises. pybind11 made a RuntimeError of the two
    ("MISMATCH of original and normalized active exception types"), which no program catches. So
    there the interrupt waits until that exception is on its way. A program's own handler of SIGINT
    stays.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def has_own_handler(signum: int) -> bool:
    """Whether the program has one of a signal, and not Python, or `let_interrupts_through`."""
    usual = (signal.SIG_DFL, signal.default_int_handler, _interrupt)
    return signal.getsignal(signum) not in usual


def _interrupt(signum: int, frame: types.FrameType | None) -> None:
    op = frame
    while op is not None and op.f_globals.get("__name__") in _ERRORS:
        op = op.f_back
    if op is None or op is frame:
        signal.default_int_handler(signum, frame)
        return
    before = sys.gettrace()

    def raise_it(*_: object) -> None:
        """Called as the exception comes to the function that has called the op."""
        sys.settrace(before)
        raise KeyboardInterrupt

    sys.settrace(lambda *_: None)
    op.f_trace = raise_it


def to_tensor(value: Any) -> Any:
    """`value` as a tensor of the graph that is being built, if one is.

    Of an eager tensor tf.convert_to_tensor makes itself, in a third of the time that a
    whole tf.identity takes.
    """
    if isinstance(value, tf.Tensor) and executes_eagerly():
        return value
    for kind, cure in _COMPOSITE.items():
        if isinstance(value, kind):
            raise TypeError(
                f"Collectives take dense tensors, and this is a {kind.__name__}: pass {cure}, each "
                "in a call of its own."
            )
    return tf.convert_to_tensor(value)


# What is made of several tensors, and what to pass instead.
_COMPOSITE = {
    tf.RaggedTensor: "x.to_tensor(), or its parts x.flat_values and x.nested_row_lengths()",
    tf.SparseTensor: "tf.sparse.to_dense(x), or its parts x.indices and x.values",
}


def execute(function: Callable[..., Any], op_type: str, tensor: Any, attributes: Any) -> Any:
    """Runs an op of one input and one output eagerly, as TensorFlow's wrapper of it would.

    The wrapper is `function`, for what needs more: a callback of ops, a tensor of a graph.
    `attributes` are names and values in turn. What has its default may be left out, but where the
    op's gradient asks for it.
    """
    try:
        return pywrap_tfe.TFE_Py_FastPathExecute(
            context.context(), op_type, None, tensor, *attributes
        )
    except core._NotOkStatusException as error:
        return ops.raise_from_not_ok_status(error, None)
    except core._FallbackException:
        return function(tensor, **dict(zip(attributes[::2], attributes[1::2], strict=True)))


def state_variable(value: Any, name: str) -> Any:
    """A variable for this rank's own state; call it inside `tf.init_scope`.

    In a v1 graph it is a local variable, which `local_variables_initializer`
    initialises and a Saver leaves out; its name is made unique there.
    """
    if tf.executing_eagerly():
        # Not tf.Variable: in all traces of a tf.function but the first nobody may make one.
        return resource_variable_ops.ResourceVariable(value, trainable=False, name=name)
    return tf.compat.v1.get_variable(
        tf.compat.v1.get_default_graph().unique_name(name),
        initializer=value,
        trainable=False,
        use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


def retraced(function: Any) -> Any:
    """A tf.function of ours that is traced for each list of variables or gradients.

    TensorFlow would warn of that, and name a function that the program does not have.
    """
    function._omit_frequent_tracing_warning = True
    return function


def waits_for(values: Any) -> list[Any]:
    """What a control dependency on these values, in any nest, takes; nothing in eager mode."""
    if tf.executing_eagerly():
        return []
    flat = tf.nest.flatten(values, expand_composites=True)
    return [value for value in flat if value is not None]


def eagerly() -> contextlib.AbstractContextManager[Any]:
    """Within it ops run at once, whatever graph is being built around it."""
    mode: contextlib.AbstractContextManager[Any] = context.eager_mode()
    return mode


def in_xla() -> bool:
    """Whether the function being traced is to be compiled by XLA (jit_compile=True)."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def tf_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras 3 variable; anything else is returned as it is."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def free_eager_kernels() -> None:
    """Frees what TensorFlow keeps of eager calls; the next call of each kind makes its own anew.

    It keeps a kernel for each value of an op's attributes, such as a process set's number.
    """
    context.context().clear_kernel_cache()


class ByVariables(Generic[State]):
    """What is kept for each list of variables, which is known by the variables in it.

    Not by their places: one optimizer may be used on several lists in turn, and a
    layer that is frozen makes another list of what was one.
    """

    def __init__(self) -> None:
        # The variables with it, so that no id is used again.
        self._kept: dict[tuple[int, ...] | None, tuple[list[Any], State]] = {}

    def get(self, variables: Sequence[Any] | None, make: Callable[[], State]) -> State:
        """What is kept for these variables; None: for a caller that has one list only."""
        held = [tf_variable(variable) for variable in variables or ()]
        key = None if variables is None else tuple(map(id, held))
        if key not in self._kept:
            self._kept[key] = (held, make())
        return self._kept[key][1]

    def all(self) -> list[State]:
        """All that is kept, in the order in which it was made."""
        return [state for _, state in self._kept.values()]


def path_of(variable: Any) -> str:
    """A Keras 3 variable's path, which says the layer; else the name; empty for no variable."""
    path = getattr(variable, "path", None)
    if not isinstance(path, str):
        path = variable.name if isinstance(variable, tf.Variable) else ""
    return path.partition(":")[0]


def member_name(variable: Any) -> str:
    """What the ranks compare, to be sure that they reduce the same variables together.

    Without what Keras appends to a name when it has given it before: that counts
    what a process made until then, and may differ between ranks. Of a path the last two
    parts, layer and variable: a model that `load_model` has read names no model before them.
    Empty for a source that is no variable.
    """
    plain = re.sub(r"_\d+(?=/|$)", "", path_of(variable))
    return "/".join(plain.split("/")[-2:])


def enclosing_graphs() -> list[Any]:
    """The graph that is being built now, and those around it; none in eager mode."""
    graphs = []
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return graphs


# The datasets of tf.data that call their function for several elements at once.
_PARALLEL_DATASET = re.compile(r"_?Parallel\w*Dataset|_MapAndBatchDataset")


def parallel_dataset() -> str | None:
    """The class of the dataset that is tracing its parallel function now; None for none.

    TensorFlow tells a function nothing about who calls it: the stack does.
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            dataset = type(frame.f_locals.get("self")).__name__
            if _PARALLEL_DATASET.fullmatch(dataset):
                return dataset
        frame = frame.f_back
    return None


def on_device(device: str) -> contextlib.AbstractContextManager[Any]:
    """The device that a user asked for; "" for TensorFlow's choice."""
    return tf.device(device) if device else contextlib.nullcontext()


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Where tf_hvd's own counts, flags and lists are exchanged, on all ranks.

    TensorFlow would choose a GPU where there is one, and not all ranks may have one. What decides
    on the result is on the host anyway.
    """
    device: contextlib.AbstractContextManager[Any] = tf.device("CPU:0")
    return device


def warn_deprecated(text: str) -> None:
    """A DeprecationWarning at the line of the program that called this package."""
    level, frame = 1, sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("tf_hvd", "tensorflow"):
            break
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, DeprecationWarning, stacklevel=level)


_ANY_ORDER = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"


def run_always_and_side_by_side(op_types: Iterable[str]) -> None:
    """Lets tf.function run each op of these types, and not one after the other.

    A rank that left a collective out because it does not use the result would keep those
    waiting that do; two ranks whose graphs have them in another order would wait for
    each other if they ran one by one. TensorFlow reads the set each time a function is traced.
    """
    present = getattr(auto_control_deps, _ANY_ORDER, None)
    if present is None:
        raise ImportError(
            f"TensorFlow {tf.__version__} has no auto_control_deps.{_ANY_ORDER} any more, without "
            "which collectives in a tf.function would run one after the other. Install a newer "
            "tf_hvd, or the TensorFlow that this one was built for."
        )
    setattr(auto_control_deps, _ANY_ORDER, frozenset(present) | frozenset(op_types))


def has_no_strategy() -> bool:
    """True if it is plain that there is no strategy; tf.distribute.has_strategy takes 10 us.

    It reads the same list of the same graph, and asks the exception that an empty one raises.
    """
    graphs = ops._default_graph_stack
    graph = graphs.stack[-1] if graphs.stack else graphs._global_default_graph
    return graph is None or getattr(graph, "_distribution_strategy_stack", None) == []


def traceback_of(op: Any) -> list[tuple[str, int]]:
    """Files and lines that led to an op of a graph, the innermost last, as AutoGraph found them."""
    return [(frame.filename, frame.lineno) for frame in op.traceback]


def annotate(op: Any, attribute: str, text: bytes) -> None:
    """Gives an op of a graph an attribute of ours, which it need not have: it begins with "_"."""
    op._set_attr(attribute, tf.compat.v1.AttrValue(s=text))


def in_loop(graphs: Sequence[Any]) -> bool:
    return any(isinstance(graph, WhileBodyFuncGraph) for graph in graphs)


def global_generator() -> Any:
    """What tf.random.get_global_generator gives, if a program has asked for it; else None."""
    return stateful_random_ops.global_generator


def is_of_gradients(op: Any) -> bool:
    """Whether tf.gradients has made an op of a v1 graph. It says so; names would not do."""
    return op._original_op is not None


def op_of_variable(variable: Any) -> Any:
    """The op that stands for a variable of a v1 graph, a resource or the older kind."""
    return (variable.handle if hasattr(variable, "handle") else variable._ref()).op


def is_reference(tensor: Any) -> bool:
    """Whether a tensor is a v1 variable of the older kind itself."""
    return bool(tensor.dtype._is_ref_dtype)


def loss_scale_of(optimizer: tf.compat.v1.train.Optimizer) -> Any:
    """The loss scale of a MixedPrecisionLossScaleOptimizer."""
    return optimizer._loss_scale


def dataset_inputs(dataset: Any) -> list[Any]:
    return list(dataset._inputs())


def dataset_inside(dataset: Any) -> Any:
    """The dataset that a v1 dataset stands for; any other is returned as it is."""
    return getattr(dataset, "_dataset", dataset)


def dataset_argument(dataset: Any, name: str) -> Any:
    """What a dataset was made with, under the name of tf.data's own class; None if it has none."""
    return getattr(dataset, f"_{name}", None)
