"""The short forms of `./dev prove`: that its programs still find what they look for."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "prove"))
import call  # noqa: E402
import line_coverage  # noqa: E402

# The wheel for each TensorFlow is tests/wheel_test.py's and tests/containers'; the seeds are
# those of the C++ tests, fuzz those of programs_test.py and training_programs_test.py, and of the
# tests of damaged data; elastic that of elastic/jobs_test.py.
SHORT = ("faults", "kills", "soak", "sizes")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHORT)
def test_the_short_form(name):
    table = __import__(name).prove(True)
    assert table.rows
    assert table.markdown().count("\n") == len(table.rows) + 2


def test_a_line_that_is_reached_in_one_copy_of_the_package_counts_once():
    """Copies that tests make elsewhere took the place of the package itself."""
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


def test_a_form_is_what_tells_facts_itself_and_is_made():
    """A queue only collects them, and what is only read is not made."""
    ran = {("a.h", SOURCE.count("\n", 0, SOURCE.index(text)) + 1) for text in ("void", "Entry e")}
    forms = call.forms_of({"a.h": SOURCE}, ran, set())
    assert [form.name for form in forms] == ["Entry"]
