"""Random training programs: their components, and how they are drawn.

A Program is a model, an optimizer, a way of training, and differences between ranks. Its fields
describe it completely. A field with its default has no effect, so a failing program is shrunk by
resetting one field after the other.
"""

import dataclasses
import random

FIT, OWN_STEP, ON_BATCH, BY_HAND, TAPE, SESSION = (
    "fit", "own train_step", "train_on_batch", "apply_gradients", "tape", "session",
)  # fmt: skip
FITS = (FIT, OWN_STEP)

KERAS_OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adafactor", "Lion", "Lamb", "Nadam",
)  # fmt: skip
V1_OPTIMIZERS = ("SGD", "Momentum", "Adam", "RMSprop", "Adagrad")
# Optimizers with a learning rate that does not affect their state.
WITHOUT_TRACE = ("Adam", "AdamW", "Adagrad")


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """One training. Options are pairs, in the order in which they were drawn."""

    seed: int = 0
    """Seed of the data and the initial weights."""
    library: str = "keras"
    """keras, tf_keras or v1."""
    model: str = "dense"
    """Layers (dense, embedding) or variables only (plain, table, linear)."""
    layers: tuple[str, ...] = ()
    policy: str = "float64"
    optimizer: str = "SGD"
    options: tuple[tuple[str, object], ...] = ()
    """Arguments of the optimizer."""
    override: str = ""
    """A method that a subclass of the optimizer overrides, to clip: apply, apply_gradients, or
    "own_update", an apply that updates variables itself."""
    wrap: tuple[tuple[str, object], ...] = ()
    """Arguments of DistributedOptimizer or DistributedGradientTape."""
    environment: tuple[tuple[str, str], ...] = ()
    loop: str = FIT
    eager: bool = False
    jit: bool = False
    """Whether XLA compiles the step."""
    lists: str = "one"
    """one; two lists of variables under one optimizer; or each list under its own."""
    crossed: bool = False
    """Whether odd ranks use the lists in reverse order; that must be an error, not a mixture."""
    batch: int = 4
    """Rows of each rank in each step."""
    steps: int = 3
    epochs: int = 1
    fits: int = 1
    between: str = ""
    """The action between two fits: save, freeze."""
    steps_per_execution: int = 1
    callbacks: tuple[str, ...] = ()
    data: str = "arrays"
    """arrays and shards of equal lengths (drop, repeat), or of any lengths (join)."""
    odd_rows: int = 0
    """The number of rows that are not divisible by the ranks, or do not fill a batch."""
    start: str = "same"
    """The initial weights: same, or different on each rank and then broadcast."""
    root: int = 0
    left_out: str = ""
    """What the last rank does if the process set excludes it: trains, waits."""
    api: str = "hvd"
    """hvd, or keras: keras.distribution gets the global batches. Never drawn."""

    def __repr__(self):
        """Without fields that have their defaults."""
        fields = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        said = [f"{name}={value!r}" for name, value, default in fields if value != default]
        return f"Program({', '.join(said)})"

    def option(self, name, default=None):
        """An argument of the optimizer."""
        return dict(self.options).get(name, default)

    def wrapped(self, name, default=None):
        """An argument of the wrapper."""
        return dict(self.wrap).get(name, default)

    @property
    def in_layers(self):
        """Whether the model is a Keras model."""
        return self.model in ("dense", "embedding")

    @property
    def passes(self):
        """The number of steps per update."""
        return self.wrapped("backward_passes_per_step", 1)

    def members(self, size):
        """The ranks that train together."""
        return list(range(size - 1 if self.left_out else size))


def _has(program, *names):
    """Whether the program has any of these options, layers or callbacks."""
    found = {*dict(program.options), *dict(program.wrap), *program.layers, *program.callbacks}
    return bool(found & set(names))


CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
PLANS = ("warmup", "schedule")
NOTHING_ELSE = {"learning_rate", "momentum"}

# Combinations that are invalid, or differ in meaning between one rank and several.
RULES = (
    ("v1 has sessions only", lambda p: (p.library == "v1") != (p.loop == SESSION)),
    ("layers are trained by Keras", lambda p: p.in_layers and p.loop == SESSION),
    ("variables are trained in a loop", lambda p: not p.in_layers
     and p.loop not in (BY_HAND, TAPE, SESSION)),
    ("variables have no layers", lambda p: not p.in_layers and p.layers),
    ("these layers follow a dense one", lambda p: p.model == "embedding" and p.layers
     and set(p.layers) - {"dropout", "l2", "two_outputs", "adapted", "held"}),
    ("XLA cannot compile a vocabulary", lambda p: p.jit and p.model == "embedding"
     and _has(p, "adapted")),
    ("held layers are not adapted", lambda p: _has(p, "held")
     and _has(p, "adapted")),
    ("one kind of batch normalization", lambda p: {"batch_norm", "sync_batch_norm"} <=
    set(p.layers)), ("a model that is built late is a chain", lambda p: _has(p, "late")
     and (_has(p, "two_outputs", "groups") or p.loop != FIT or p.between)),
    ("v1's optimizers", lambda p: p.library == "v1"
     and (p.optimizer not in V1_OPTIMIZERS or p.options)),
    ("Keras' optimizers", lambda p: p.library != "v1" and p.optimizer not in KERAS_OPTIMIZERS),
    ("only Keras 3 supports it", lambda p: p.library == "tf_keras"
     and (p.optimizer == "Lamb" or _has(p, "gradient_accumulation_steps"))),
    ("exact sums need exact updates", lambda p: p.model == "linear"
     and (p.optimizer not in ("SGD", "Momentum") or dict(p.options).keys() - NOTHING_ELSE
          or p.batch == 3 or _has(p, "backward_passes_per_step", "compression")
          or p.jit)),  # which fuses multiplication and addition
    ("tf_keras counts twice in a function", lambda p: p.library == "tf_keras"
     and p.optimizer == "Nadam"),
    ("momentum", lambda p: _has(p, "momentum") and p.optimizer not in ("SGD", "RMSprop")),
    ("nesterov", lambda p: _has(p, "nesterov")
     and not (p.optimizer == "SGD" and p.option("momentum"))),
    ("one clip", lambda p: sum(name in dict(p.options) for name in CLIPS) > 1),
    ("averages over time", lambda p: _has(p, "use_ema")
     and (p.policy != "float64" or _has(p, "gradient_accumulation_steps"))),
    ("half precision", lambda p: p.policy != "float64"
     and (p.library != "keras" or p.loop not in (FIT, BY_HAND) or p.optimizer != "SGD" or p.wrap
          or p.layers or p.options or not p.in_layers or p.fits > 1 or p.lists != "one"
          or p.data == "join" or p.callbacks)),
    ("sixteen bits", lambda p: _has(p, "compression")
     and (p.optimizer != "SGD" or p.options or p.callbacks)),
    ("factors around an average", lambda p: _has(p, "gradient_predivide_factor")
     and _has(p, "op")),
    ("an average of passes", lambda p: _has(p, "average_aggregated_gradients") and p.passes == 1),
    ("passes of a tape", lambda p: p.loop == TAPE and p.passes > 1),
    ("passes and accumulation", lambda p: p.passes > 1
     and _has(p, "gradient_accumulation_steps", "sync_batch_norm", "use_ema")),
    ("sums over passes are dense", lambda p: p.passes > 1 and p.model in ("embedding", "table")
     and not _has(p, "sparse_as_dense")),
    ("lists are for loops", lambda p: p.lists != "one"
     and (p.loop not in (BY_HAND, TAPE, SESSION)
          or _has(p, "gradient_accumulation_steps", "use_ema", "sync_batch_norm"))),
    ("crossed lists are two lists of known variables", lambda p: p.crossed
     and (p.lists == "one" or p.loop not in (BY_HAND, TAPE) or not p.in_layers
          or p.start != "broadcast" or p.data == "join" or p.left_out)),
    ("groups of lists", lambda p: p.lists != "one" and p.wrapped("groups") == "lists"),
    ("options of Keras' fit", lambda p: p.loop not in FITS and (p.steps_per_execution > 1
     or p.callbacks or p.fits > 1 or p.between or p.data in ("drop", "repeat"))),
    ("between fits", lambda p: bool(p.between) and p.fits == 1),
    ("a file has only Keras' options", lambda p: p.between == "save"
     and (p.loop != FIT or p.passes > 1 or _has(p, "use_ema") or p.wrapped("groups") == "lists")),
    ("a file has rank 0's part of an incomplete update", lambda p: p.between == "save"
     and _has(p, "gradient_accumulation_steps")
     and (p.steps % p.option("gradient_accumulation_steps") or p.odd_rows)),
    ("frozen weights", lambda p: p.between == "freeze"
     and (p.model != "dense" or p.wrapped("groups") == "lists"
          or _has(p, "gradient_accumulation_steps", "use_ema"))),
    ("overridden methods are for Keras optimizers", lambda p: bool(p.override)
     and (p.library == "v1" or p.model == "linear" or p.policy != "float64" or p.between == "save"
          or _has(p, "compression") or (p.library != "keras" and p.override != "apply_gradients"))),
    ("a held model is trained by its own step", lambda p: _has(p, "held")
     and (p.loop != OWN_STEP or p.between or _has(p, "checkpoint"))),
    ("several steps at once", lambda p: p.eager and p.steps_per_execution > 1),
    ("XLA needs fixed shapes and no strings", lambda p: p.jit
     and (p.eager or p.library == "v1" or p.data == "join" or _has(p, "late")
          or ("TF_HVD_CHECK_WEIGHTS_STEPS", "2") in p.environment)),
    ("join", lambda p: p.data == "join" and (p.loop not in (BY_HAND, TAPE)
     or p.passes > 1 or p.left_out
     or _has(p, "gradient_accumulation_steps", "sync_batch_norm", "compression"))),
    ("odd rows", lambda p: bool(p.odd_rows) and p.data not in ("drop", "repeat")),
    ("one plan of learning rates", lambda p: len({*PLANS, "plateau"} & set(p.callbacks)) > 1),
    ("momentum correction", lambda p: _has(p, *PLANS)
     and not (p.optimizer in WITHOUT_TRACE or (p.optimizer == "SGD" and not _has(p, "nesterov")))),
    ("callbacks need all ranks", lambda p: p.left_out
     and (p.callbacks or p.start != "same" or p.between == "save" or _has(p, "sync_batch_norm"))),
    ("keras.distribution has Keras' fit and rank 0's weights", lambda p: p.api == "keras"
     and (p.library != "keras" or p.loop not in FITS or p.wrap or p.left_out or p.root
          or p.data != "arrays" or not p.in_layers or _has(p, "batch_norm"))),
    ("one callback broadcasts", lambda p: p.loop in FITS
     and (p.start == "broadcast") != _has(p, "broadcast")),
)  # fmt: skip


def by_keras(program):
    """The program by keras.distribution, which has no arguments of the wrapper, and no shares."""
    same = {"wrap": (), "left_out": "", "crossed": False, "root": 0, "data": "arrays"}
    return dataclasses.replace(program, api="keras", odd_rows=0, **same)


def refused(program, size):
    """The reason why the program is invalid; empty if it is valid."""
    if (program.left_out or program.crossed) and size < 2:
        return "it needs two ranks"
    return next((reason for reason, rule in RULES if rule(program)), "")


# The probability of each way to train, in percent.
LOOPS = {FIT: 32, OWN_STEP: 9, ON_BATCH: 7, BY_HAND: 22, TAPE: 15, SESSION: 15}

# Possible additions to a program: fields and their values; tuples are extended.
ADDITIONS = (
    *({"layers": (name,)} for name in (
        "frozen", "batch_norm", "sync_batch_norm", "dropout", "l2", "two_outputs", "late",
        "adapted", "held")),
    {"layers": ("held",), "start": "broadcast", "callbacks": ("broadcast",)},
    *({"override": name} for name in ("apply", "apply_gradients", "own_update")),
    {"policy": "mixed_float16"},
    {"options": (("momentum", 0.9),)},
    {"options": (("momentum", 0.5), ("nesterov", True))},
    *({"options": (pair,)} for pair in (
        ("clipnorm", 0.05), ("clipvalue", 0.02), ("global_clipnorm", 0.05), ("weight_decay", 0.05),
        ("use_ema", True), ("gradient_accumulation_steps", 2),
        ("gradient_accumulation_steps", 3))),
    *({"wrap": (pair,)} for pair in (
        ("op", "Sum"), ("groups", 1), ("groups", 2), ("groups", "lists"),
        ("gradient_predivide_factor", 2.0), ("sparse_as_dense", True), ("compression", "bf16"),
        ("sparse", "rows"), ("sparse", "dense"), ("backward_passes_per_step", 2))),
    {"wrap": (("backward_passes_per_step", 3), ("average_aggregated_gradients", True))},
    {"wrap": (("backward_passes_per_step", 2), ("sparse_as_dense", True))},
    *({"environment": (pair,)} for pair in (
        ("TF_HVD_BUCKET_BYTES", "1"), ("TF_HVD_BUCKET_BYTES", "100"), ("TF_HVD_SPARSE", "rows"),
        ("TF_HVD_SPARSE", "dense"), ("TF_HVD_CHECK_WEIGHTS_STEPS", "2"))),
    {"eager": True},
    {"jit": True},
    {"lists": "two"},
    {"lists": "two", "wrap": (("backward_passes_per_step", 2), ("sparse_as_dense", True))},
    {"lists": "each its own"},
    {"lists": "two", "start": "broadcast", "crossed": True},
    {"lists": "each its own", "start": "broadcast", "crossed": True},
    {"fits": 2},
    {"fits": 2, "between": "save"},
    {"fits": 2, "between": "freeze"},
    {"steps_per_execution": 2},
    {"steps_per_execution": 3},
    *({"callbacks": (name,)} for name in (
        "average", "stop", "warmup", "schedule", "checkpoint")),
    {"epochs": 5, "callbacks": ("average", "keras_stop")},
    {"epochs": 5, "callbacks": ("plateau",)},
    {"epochs": 4, "callbacks": ("stop",)},
    {"start": "broadcast"},
    {"start": "broadcast", "callbacks": ("broadcast",)},
    *({"data": "drop", "odd_rows": odd} for odd in (0, 1, 3, 5)),
    *({"data": "repeat", "odd_rows": odd} for odd in (1, 3, 5)),
    {"data": "join"},
    {"left_out": "trains"},
    {"left_out": "waits"},
)  # fmt: skip
CHANCE = 0.25


def _frame(rng):
    """A program without options."""
    (loop,) = rng.choices(list(LOOPS), LOOPS.values())
    variables, layers = ("plain", "table", "linear"), ("dense", "dense", "embedding")
    model = rng.choice({BY_HAND: variables + layers, TAPE: variables + layers, SESSION: variables}
                       .get(loop, layers))  # fmt: skip
    library = "v1" if loop == SESSION else rng.choice(("keras", "keras", "tf_keras"))
    optimizers = V1_OPTIMIZERS if loop == SESSION else (*KERAS_OPTIMIZERS, "SGD", "SGD", "Adam")
    return Program(
        seed=rng.randrange(1000),
        library=library,
        model=model,
        optimizer="SGD" if model == "linear" else rng.choice(optimizers),
        loop=loop,
        batch=rng.choice((2, 4) if model == "linear" else (2, 3, 4)),
        steps=rng.choice((2, 3, 4)),
        epochs=rng.choice((1, 2, 3)),
    )


def _with(program, addition):
    """The program with an addition; an option of the same name is replaced."""
    fields = {}
    for name, value in addition.items():
        before = getattr(program, name)
        if not isinstance(value, tuple):
            fields[name] = value
        elif isinstance(value[0], tuple):
            fields[name] = tuple({**dict(before), **dict(value)}.items())
        else:
            fields[name] = before + tuple(new for new in value if new not in before)
    return dataclasses.replace(program, **fields)


def draw(seed, number, size):
    """The program of this number from a seed, for a job of `size` ranks."""
    rng = random.Random(f"{seed} {number} {size}")
    program = _frame(rng)
    while refused(program, size):  # a program for one Keras only
        program = _frame(rng)
    for addition in rng.sample(ADDITIONS, len(ADDITIONS)):
        larger = _with(program, addition)
        if rng.random() < CHANCE and not refused(larger, size):
            program = larger
    callbacks = rng.sample(program.callbacks, len(program.callbacks))
    root = rng.randrange(size) if program.start == "broadcast" else 0
    return dataclasses.replace(program, callbacks=tuple(callbacks), root=root)


def simplifications(program, kept=()):
    """The programs with one field reset; the fields `kept` stay."""
    for field in dataclasses.fields(program):
        value = getattr(program, field.name)
        if value == field.default or field.name in kept:
            continue
        if isinstance(value, tuple) and len(value) > 1:
            for i in range(len(value)):
                yield dataclasses.replace(program, **{field.name: value[:i] + value[i + 1 :]})
        elif field.name == "start":
            callbacks = tuple(name for name in program.callbacks if name != "broadcast")
            yield dataclasses.replace(program, start="same", callbacks=callbacks)
        else:
            yield dataclasses.replace(program, **{field.name: field.default})
