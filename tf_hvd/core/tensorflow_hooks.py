"""Helpers for working with TensorFlow, and all uses of TensorFlow's private names.

The helpers cover AutoGraph, interrupts, variables of TensorFlow and Keras, devices and deprecated
arguments. No other file uses private names of TensorFlow (tests/architecture_test.py checks this).
tf_hvd.keras.compat uses those of Keras.
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

# Name scope of the ops that a tape adds.
BACKPROP = "gradient_tape/"
# The method that lists the objects that a SavedModel or a checkpoint saves with an object.
SAVED_CHILDREN = "_trackable_children"


def executes_eagerly() -> bool:
    """Return what tf.executing_eagerly() returns, in a third of the time.

    TensorFlow's op wrappers use the same check.
    """
    return bool((context._context or context.context())._thread_local_data.is_eager)


def verbatim(function: F) -> F:
    """Exclude `function` from conversion by AutoGraph; a decorator.

    A tf.function converts all functions that it calls, directly or indirectly. tf_hvd's functions
    need no conversion, which would cost seconds in a program's first step.

    The wrapper has the signature and the defaults of `function`, even for tools that do not
    follow `__wrapped__`.
    """
    unconverted: Any = tf.autograph.experimental.do_not_convert(function)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # AutoGraph acts only while functions are traced.
        if executes_eagerly():
            return function(*args, **kwargs)
        return unconverted(*args, **kwargs)

    # Copies the mark that tells AutoGraph not to convert the function.
    functools.update_wrapper(wrapper, unconverted)
    return cast(F, _as_shown(wrapper, function))


def around_a_method(function: Callable[..., Any]) -> Any:
    """Exclude `function` from AutoGraph, but not the user's method that it calls; a decorator.

    `function` gets a converter as its first argument. The converter returns the version of
    the user's method that AutoGraph would call.
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
    """Return a decorator that makes a collective's simplest eager calls run the op directly.

    These are the calls with only a tensor and `op=`. In such a call, the wrapper is the only Python
    function between the program and the op. All other calls run the decorated function.

    Args:
      op_type: the op's name.
      plans: maps `op` and the number of the tensor's dtype to the op's attributes, as alternating
        names and values. Calls without an entry run the decorated function.
      lines: the module call_sites.
    """
    # A bool or a float may equal the number of an op, but does not name one.
    kinds = {int, *(type(op) for op, _ in plans)}

    def decorate(function: F) -> F:
        def call(*args: Any, **kwargs: Any) -> Any:
            op = kwargs.get("op")
            now = context._context
            if (
                len(args) != 1
                or len(kwargs) != ("op" in kwargs)
                or type(args[0]) is not ops.EagerTensor
                or type(op) not in kinds
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
    """Make Ctrl-C raise KeyboardInterrupt even during an op that then fails.

    Python checks for signals when it enters a Python function. The first function after a failed
    op builds the exception for TensorFlow's C++ code. If the interrupt were raised there, pybind11
    would turn both exceptions into a RuntimeError, which no program catches. The interrupt is
    therefore raised only once the op's exception propagates. A program's own SIGINT handler is
    kept.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def has_own_handler(signum: int) -> bool:
    """Return whether the program has set a signal's handler.

    Handlers of Python and of `let_interrupts_through` do not count.
    """
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
        """Raise KeyboardInterrupt when the exception reaches the function that called the op."""
        sys.settrace(before)
        raise KeyboardInterrupt

    sys.settrace(lambda *_: None)
    op.f_trace = raise_it


def to_tensor(value: Any) -> Any:
    """Convert `value` to a tensor, in the graph that is being built, if any.

    tf.convert_to_tensor returns an eager tensor unchanged, in a third of the time of tf.identity.
    """
    if isinstance(value, tf.Tensor) and executes_eagerly():
        return value
    for kind, cure in _COMPOSITE.items():
        if isinstance(value, kind):
            raise TypeError(
                f"Collectives take dense tensors, not a {kind.__name__}; pass {cure} in "
                "separate calls."
            )
    return tf.convert_to_tensor(value)


# Types composed of several tensors, and what to pass instead.
_COMPOSITE = {
    tf.RaggedTensor: "x.to_tensor(), or its parts x.flat_values and x.nested_row_lengths()",
    tf.SparseTensor: "tf.sparse.to_dense(x), or its parts x.indices and x.values",
}


def execute(function: Callable[..., Any], op_type: str, tensor: Any, attributes: Any) -> Any:
    """Run an op with one input and one output eagerly, faster than TensorFlow's wrapper of the op.

    `function` is that wrapper. It handles special cases, such as op callbacks and tensors of a
    graph. `attributes` are alternating names and values. Attributes with their default value may be
    omitted, unless the op's gradient reads them.
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
    """Create a variable for this rank's own state. Call this function inside `tf.init_scope`.

    In a v1 graph the variable is a local variable with a unique name. `local_variables_initializer`
    initialises it, and a Saver does not save it.
    """
    if tf.executing_eagerly():
        # Not tf.Variable: a tf.function may create one only in its first trace.
        return resource_variable_ops.ResourceVariable(value, trainable=False, name=name)
    return tf.compat.v1.get_variable(
        tf.compat.v1.get_default_graph().unique_name(name),
        initializer=value,
        trainable=False,
        use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


def retraced(function: Any) -> Any:
    """Suppress TensorFlow's retracing warning for a tf.function in tf_hvd.

    The function is traced for each list of variables or gradients. The warning would name a
    function that the program does not contain.
    """
    function._omit_frequent_tracing_warning = True
    return function


def waits_for(values: Any) -> list[Any]:
    """Return the argument of tf.control_dependencies for nested values; empty in eager mode."""
    if tf.executing_eagerly():
        return []
    flat = tf.nest.flatten(values, expand_composites=True)
    return [value for value in flat if value is not None]


def eagerly() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which ops run immediately, even while a graph is being built."""
    mode: contextlib.AbstractContextManager[Any] = context.eager_mode()
    return mode


def in_xla() -> bool:
    """Return whether XLA will compile the function that is being traced (jit_compile=True)."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def tf_variable(variable: Any) -> Any:
    """Return the tf.Variable of a Keras 3 variable; any other object is returned unchanged."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def free_eager_kernels() -> None:
    """Free the kernels that TensorFlow keeps for eager calls; later calls create them again.

    TensorFlow keeps a kernel for each value of an op's attributes, such as a process set's number.
    """
    context.context().clear_kernel_cache()


class ByVariables(Generic[State]):
    """A container of states, one for each list of variables; the variables identify the list.

    Positions would not identify variables: one optimizer may be used alternately on several lists,
    and freezing a layer changes a list.
    """

    def __init__(self) -> None:
        # The variables are kept too, so that no id is reused.
        self._kept: dict[tuple[int, ...] | None, tuple[list[Any], State]] = {}

    def get(self, variables: Sequence[Any] | None, make: Callable[[], State]) -> State:
        """Return the state for these variables, which `make` creates at the first call.

        Callers that have only one list may pass None as `variables`.
        """
        held = [tf_variable(variable) for variable in variables or ()]
        key = None if variables is None else tuple(map(id, held))
        if key not in self._kept:
            self._kept[key] = (held, make())
        return self._kept[key][1]

    def all(self) -> list[State]:
        """Return all states, in the order of their creation."""
        return [state for _, state in self._kept.values()]


def path_of(variable: Any) -> str:
    """Return a Keras 3 variable's path, or another variable's name; "" if it is not a variable."""
    path = getattr(variable, "path", None)
    if not isinstance(path, str):
        path = variable.name if isinstance(variable, tf.Variable) else ""
    return path.partition(":")[0]


def member_name(variable: Any) -> str:
    """Return the name that ranks compare to check that they reduce the same variables together.

    The name omits the number that Keras appends to a repeated name. That number depends on earlier
    objects of the process, and may differ between ranks. The name contains only the last two parts
    of a path, layer and variable, because `load_model` omits the model's name. The name is "" for
    a source that is not a variable.
    """
    plain = re.sub(r"_\d+(?=/|$)", "", path_of(variable))
    return "/".join(plain.split("/")[-2:])


def enclosing_graphs() -> list[Any]:
    """Return the graph that is being built and its enclosing graphs; empty in eager mode."""
    graphs = []
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return graphs


# The tf.data datasets that call their function for several elements concurrently.
_PARALLEL_DATASET = re.compile(r"_?Parallel\w*Dataset|_MapAndBatchDataset")


def parallel_dataset() -> str | None:
    """Return the class of the dataset that is tracing its parallel function now, or None.

    TensorFlow does not report a function's caller, so this function inspects the stack.
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
    """Return a device scope for the device that a user requested; "" for TensorFlow's choice."""
    return tf.device(device) if device else contextlib.nullcontext()


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Return a device scope for the CPU, where ranks exchange tf_hvd's counts, flags and lists.

    TensorFlow would choose a GPU if the machine has one, but some ranks may have none. The host
    reads these results anyway.
    """
    device: contextlib.AbstractContextManager[Any] = tf.device("CPU:0")
    return device


def warn_deprecated(text: str) -> None:
    """Issue a DeprecationWarning at the program's line that called this package."""
    level, frame = 1, sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("tf_hvd", "tensorflow"):
            break
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, DeprecationWarning, stacklevel=level)


_ANY_ORDER = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"


def run_always_and_side_by_side(op_types: Iterable[str]) -> None:
    """Make tf.function run each op of these types, even if it is unused, and in any order.

    A rank that skipped a collective with an unused result would block the other ranks. If two
    ranks' graphs ordered such ops differently, running the ops one by one would deadlock.
    TensorFlow reads the set of types each time it traces a function.
    """
    present = getattr(auto_control_deps, _ANY_ORDER, None)
    if present is None:
        raise ImportError(
            f"TensorFlow {tf.__version__} no longer has auto_control_deps.{_ANY_ORDER}, without "
            "which collectives in a tf.function would run one after the other. Install a newer "
            "tf_hvd, or the TensorFlow that this tf_hvd was built for."
        )
    setattr(auto_control_deps, _ANY_ORDER, frozenset(present) | frozenset(op_types))


def has_no_strategy() -> bool:
    """Return True if no tf.distribute strategy can be active.

    tf.distribute.has_strategy would take 10 us. It reads the same list of the same graph, but
    handles an exception if the list is empty.
    """
    graphs = ops._default_graph_stack
    graph = graphs.stack[-1] if graphs.stack else graphs._global_default_graph
    return graph is None or getattr(graph, "_distribution_strategy_stack", None) == []


def traceback_of(op: Any) -> list[tuple[str, int]]:
    """Return the files and lines that created a graph's op, innermost last.

    For code that AutoGraph has converted, the result refers to the original code.
    """
    return [(frame.filename, frame.lineno) for frame in op.traceback]


def annotate(op: Any, attribute: str, text: bytes) -> None:
    """Add a text attribute to a graph's op. The attribute's name must begin with "_"."""
    op._set_attr(attribute, tf.compat.v1.AttrValue(s=text))


def in_loop(graphs: Sequence[Any]) -> bool:
    return any(isinstance(graph, WhileBodyFuncGraph) for graph in graphs)


def global_generator() -> Any:
    """Return the generator of tf.random.get_global_generator; None if the program never used it."""
    return stateful_random_ops.global_generator


def is_of_gradients(op: Any) -> bool:
    """Return whether tf.gradients created an op of a v1 graph. The op's name cannot prove this."""
    return op._original_op is not None


def op_of_variable(variable: Any) -> Any:
    """Return the op that represents a resource or reference variable in a v1 graph."""
    return (variable.handle if hasattr(variable, "handle") else variable._ref()).op


def is_reference(tensor: Any) -> bool:
    """Return whether a tensor is itself a v1 reference variable."""
    return bool(tensor.dtype._is_ref_dtype)


def loss_scale_of(optimizer: tf.compat.v1.train.Optimizer) -> Any:
    """Return the loss scale of a MixedPrecisionLossScaleOptimizer."""
    return optimizer._loss_scale


def dataset_inputs(dataset: Any) -> list[Any]:
    return list(dataset._inputs())


def dataset_inside(dataset: Any) -> Any:
    """Return the dataset inside a v1 dataset; any other dataset is returned unchanged."""
    return getattr(dataset, "_dataset", dataset)


def dataset_argument(dataset: Any, name: str) -> Any:
    """Return an argument of a dataset, by its name in tf.data's class; None if absent."""
    return getattr(dataset, f"_{name}", None)
