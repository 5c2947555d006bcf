"""Writes a copy of a source file with one known flaw in it.

The flaws are those that agreement.md lists, and the bugs that the simulation
has found in the controller. A copy is made only if the text to be replaced is in
the file exactly once: who changes that text must look at the flaw again.
"""

import argparse
import pathlib
import sys
from typing import NamedTuple


class Mutant(NamedTuple):
    """A flaw: `sound` is replaced by `flawed` in the file called `source`."""

    source: str
    sound: str
    flawed: str


MUTANTS = {
    # A rank is inside a batch before the batch is sent on.
    "execute_before_forward": Mutant(
        "controller.cc",
        "  Forward(batch);\n  Apply(batch);\n",
        "  Apply(batch);\n  Forward(batch);\n",
    ),
    # The parent counts the child as joined and meets its late votes.
    "join_settled_first": Mutant(
        "votes.cc",
        "  for (const Key& other : open) Settle(set, other, &complete);\n"
        "  Settle(set, key, &complete);\n",
        "  Settle(set, key, &complete);\n"
        "  for (const Key& other : open) Settle(set, other, &complete);\n",
    ),
    # The other ranks' calls pair with the next one.
    "duplicate_refused_locally_only": Mutant(
        "own_queue.cc",
        '"give concurrent collectives different names";\n',
        '"give concurrent collectives different names";\n'
        "    return Answer(&entry, InvalidArgument(entry.refusal));\n",
    ),
    # Two requests of one batch get the same slot.
    "slot_number_twice_in_a_batch": Mutant(
        "process_set.cc",
        "return offered_++;",
        "return static_cast<uint32_t>(slots_.size());",
    ),
    # A rank that has left out a step goes on with what the others have of it.
    "steps_not_compared": Mutant(
        "agreement.cc",
        "  KeepLowestOffStep({high.first.rank, high.step}, low.step, &merged.off_step);\n",
        "",
    ),
    # Nobody learns who is missing.
    "no_ask": Mutant(
        "stall_monitor.cc",
        "  ask.name = key.second;\n  OnAsk(ask, now_ns);\n",
        "  ask.name = key.second;\n  static_cast<void>(now_ns);\n",
    ),
    # What was answered below a stopped rank's parent comes when the report is made.
    "no_time_for_answers_on_their_way": Mutant(
        "stall_monitor.cc",
        "call.wait_ns = query.wait_ns / height_ * (height_ - 1);",
        "call.wait_ns = query.wait_ns;",
    ),
    # Who is at the top gets a question from everybody.
    "every_question_is_passed_on": Mutant(
        "stall_monitor.cc",
        "    if (!is_new && now_ns - passed->second < options_.query_ns) return;\n",
        "",
    ),
    # Sets added in one batch: their order there is not that of their numbers.
    "set_number_used_twice": Mutant(
        "ordering.cc",
        "next_set_ = std::max(next_set_, set + 1);",
        "next_set_ = set + 1;",
    ),
    # A call after a refused one of the same name counts as a duplicate.
    "refused_call_stays_open": Mutant(
        "own_queue.cc",
        "[](const Entry& earlier) { return !IsAnswered(earlier); }",
        "[](const Entry&) { return true; }",
    ),
    # A broadcast fails after a join although all ranks have submitted it.
    "join_counts_for_older_calls": Mutant(
        "votes.cc",
        "if (it->second.voted.size() < set.need.size()) vote.joined = true;",
        "if (key.second != kJoinName && !joined.empty()) vote.joined = true;",
    ),
    # A question that comes too late makes a report about nobody's wait.
    "report_without_a_wait": Mutant(
        "stall_monitor.cc",
        "  if (result.age_ns < options_.warn_ns) return;\n",
        "",
    ),
    # The calls of a removed set fail with one text before and one after.
    "removed_in_other_words": Mutant(
        "controller.cc",
        "const Status status = RemovedStatus(set);",
        'const Status status = Aborted("the process set is gone");',
    ),
}


def mutate(name: str, source: pathlib.Path) -> str:
    """Gives the text of `source` with the flaw `name` in it."""
    mutant = MUTANTS[name]
    text = source.read_text(encoding="utf-8")
    if source.name != mutant.source:
        raise ValueError(f"{name} is a flaw of {mutant.source}, not of {source.name}")
    count = text.count(mutant.sound)
    if count != 1:
        raise ValueError(
            f"{name}: the text to replace is {count} times in {source}, not once:\n{mutant.sound}"
        )
    return text.replace(mutant.sound, mutant.flawed)


def main() -> None:
    """Reads the command line and writes the copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mutant", choices=sorted(MUTANTS))
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    flags = parser.parse_args()
    try:
        text = mutate(flags.mutant, flags.source)
    except ValueError as error:
        sys.exit(f"mutate.py: {error}")
    flags.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
