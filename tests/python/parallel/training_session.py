"""Training programs as v1 graphs in Sessions, for a rank and for one worker."""

import numpy as np
import tensorflow as tf
import training_data as data
import training_models as models
import training_reference as reference

import tf_hvd as hvd

v1 = tf.compat.v1

OPTIMIZERS = {
    "SGD": lambda rate: v1.train.GradientDescentOptimizer(rate or 0.1),
    "Momentum": lambda rate: v1.train.MomentumOptimizer(rate or 0.1, momentum=0.5),
    "Adam": lambda _: v1.train.AdamOptimizer(0.02),
    "RMSprop": lambda _: v1.train.RMSPropOptimizer(0.02, momentum=0.5),
    "Adagrad": lambda _: v1.train.AdagradOptimizer(0.1),
}


class Graph:
    """The graph of a program: `x`, `y` and the weights of the rows are fed."""

    def __init__(self, program, seed):
        self.program = program
        self.model = models.Weights(
            program, seed, lambda a, n: v1.get_variable(n, initializer=a, use_resource=True)
        )
        floats = tf.float32 if program.model == "linear" else tf.float64
        kind = tf.int64 if program.model == "table" else floats
        self.x = v1.placeholder(kind, [None, 3 if kind == tf.int64 else data.FEATURES])
        self.y = v1.placeholder(floats, [None, 1])
        self.weights = v1.placeholder(floats, [None])
        rows = models.loss_rows(program, self.model(self.x), self.y)
        self.loss = tf.reduce_sum(rows * self.weights)
        self.lists = models.lists_of(program, self.model)

    def optimizers(self, wrap=lambda optimizer: optimizer):
        rate = 0.5 if self.program.model == "linear" else None
        count = 2 if self.program.lists == "each its own" else 1
        return [wrap(OPTIMIZERS[self.program.optimizer](rate)) for _ in range(count)]

    def feed(self, rows, numbers, weights):
        x, y = (data.take(part, numbers) for part in rows)
        return {self.x: x, self.y: y, self.weights: weights}

    def outcome(self, session):
        # Local variables are sums of passes, which only ranks have.
        everything = session.run(v1.global_variables())
        weights = session.run(self.model.variables)
        return reference.Outcome(weights, everything, [])


def together(part):
    """A rank's final state; `part` is a training_ranks.Rank."""
    program = part.program
    with tf.Graph().as_default(), v1.Session() as session:
        graph = Graph(program, reference.first_seed(program, part.rank))
        options = part.wrap_options(graph.model.variables)
        made = graph.optimizers(lambda o: hvd.DistributedOptimizer(o, **options))
        steps = [
            made[i % len(made)].minimize(graph.loss, var_list=variables)
            for i, variables in enumerate(graph.lists)
        ]
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        if program.start == "broadcast":
            session.run(hvd.broadcast_global_variables(program.root))
        for _ in range(program.epochs):
            for i in range(0, len(part.mine), program.batch):
                numbers = part.mine[i : i + program.batch]
                feed = graph.feed(part.rows, numbers, [1 / len(numbers)] * len(numbers))
                for step in steps:
                    session.run(step, feed)
        return graph.outcome(session)


def one_worker(program, size, salt):
    """The final state of one worker with the rows of all ranks."""
    members = len(program.members(size))
    with tf.Graph().as_default(), v1.Session() as session:
        graph = Graph(program, reference.first_seed(program, program.root))
        each, rows = reference.factor(program, members), data.rows(program, members, salt)
        updates = [_Update(graph, i, o) for i, o in _pairs(graph)]
        session.run(v1.global_variables_initializer())
        for _ in range(program.epochs):
            for step in data.steps(program, size):
                numbers = [n for mine in step for n in mine]
                weights = [each / len(mine) for mine in step for _ in mine]
                for update in updates:
                    update.run(session, graph.feed(rows, numbers, weights))
        return graph.outcome(session)


def _pairs(graph):
    made = graph.optimizers()
    return [(i, made[i % len(made)]) for i in range(len(graph.lists))]


class _Update:
    """Updates of one list of variables, after each step or after several."""

    def __init__(self, graph, number, optimizer):
        self.program = graph.program
        pairs = optimizer.compute_gradients(graph.loss, graph.lists[number])
        if self.program.wrapped("sparse_as_dense"):
            pairs = [(tf.convert_to_tensor(g), v) for g, v in pairs]
        self.gradients = [g for g, _ in pairs]
        self.sums = []
        if self.program.passes > 1:
            self.fed = [v1.placeholder(v.dtype, v.shape) for _, v in pairs]
            pairs = [(fed, v) for fed, (_, v) in zip(self.fed, pairs, strict=True)]
        self.apply = optimizer.apply_gradients(pairs)

    def run(self, session, feed):
        passes = self.program.passes
        if passes == 1:
            session.run(self.apply, feed)
            return
        self.sums.append(session.run(self.gradients, feed))
        if len(self.sums) < passes:
            return
        totals = [np.sum(column, axis=0) for column in zip(*self.sums, strict=True)]
        if self.program.wrapped("average_aggregated_gradients"):
            totals = [total / passes for total in totals]
        session.run(self.apply, dict(zip(self.fed, totals, strict=True)))
        self.sums = []
