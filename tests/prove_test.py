"""The short forms of `./dev prove`: its programs still find the expected results."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "prove"))
import call  # noqa: E402
import line_coverage  # noqa: E402

# Other proofs run elsewhere: the wheel for each TensorFlow in tests/wheel_test.py and
# tests/containers; the seeds in the C++ tests; fuzz in programs_test.py, training_programs_test.py
# and the tests of damaged data; elastic in elastic/jobs_test.py; keras in
# python/distribution/distribution_test.py.
SHORT = ("faults", "kills", "soak", "sizes")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHORT)
def test_the_short_form(name):
    table = __import__(name).prove(True)
    assert table.rows
    assert table.markdown().count("\n") == len(table.rows) + 2


def test_a_line_reached_in_one_copy_of_the_package_counts_once():
    """Copies that tests make elsewhere used to replace the package itself."""
    one = {"executed_lines": [1, 2], "missing_lines": [3, 4]}
    other = {"executed_lines": [3], "missing_lines": [1, 2, 4]}
    files = {"/a/tf_hvd/launch/job/run.py": one, "/b c/lib/tf_hvd/launch/job/run.py": other}
    assert line_coverage.counts_of(files) == {"tf_hvd/launch/job/run.py": (3, 4)}


SOURCE = """
struct Entry final : Base {
  std::string name;  // on the wire
  Request request;
  std::function<Status(int64_t bytes)> allocate;
  int64_t bytes() const { return TotalBytes(request); }
};
struct Request {
  OpKind kind = OpKind::kAllreduce;
  std::optional<DType> stored{};
};
class Queue {
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
};
void Queue::Push(const Request& request) {
  Entry entry;
"""


def test_a_form_has_its_own_facts_and_is_constructed():
    """A queue only collects them, and a class that is only read is not constructed."""
    ran = {("a.h", SOURCE.count("\n", 0, SOURCE.index(text)) + 1) for text in ("void", "Entry e")}
    forms = call.forms_of({"a.h": SOURCE}, ran, set())
    assert [form.name for form in forms] == ["Entry"]
