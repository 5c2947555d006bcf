"""`tf_hvd run --metrics`: the contents of the files, read by Prometheus' own parsers."""

import pathlib

import pytest
from prometheus_client import parser as prometheus
from prometheus_client.openmetrics import parser as openmetrics

pytestmark = pytest.mark.parametrize("family", ["openmpi"], indirect=True)

PROGRAM = """
import tensorflow as tf
import tf_hvd as hvd

hvd.init()
for step in range(10):
    hvd.allreduce(tf.ones([6]), name="first")
    if hvd.rank() == 1:
        time.sleep(0.02)
    hvd.allreduce(tf.ones([4]), name="second")
if "ENDS" in os.environ:
    time.sleep(7)  # until the file has been written
    os.kill(os.getpid(), signal.SIGKILL)
hvd.shutdown()
"""


def samples_of(file, parse):
    return {
        (sample.name, sample.labels["rank"], sample.labels.get("waited_for")): sample.value
        for family in parse(pathlib.Path(file).read_text())
        for sample in family.samples
    }


@pytest.mark.parametrize("ends", [False, True])
def test_each_rank_has_a_file(call, environ, program, ends):
    words = program(PROGRAM)
    folder = words[-1].rpartition("/")[0]
    more = {"ENDS": "1"} if ends else {}
    code, _, errors = call(
        "run", "-np", "2", "--metrics", f"{folder}/metrics.prom", *words,
        environ={**environ, **more},
    )  # fmt: skip
    assert (code != 0) == ends, errors
    for rank, file in enumerate(["metrics.prom", "metrics.rank-1.prom"]):
        for parse in (
            openmetrics.text_string_to_metric_families,
            prometheus.text_string_to_metric_families,
        ):
            found = samples_of(f"{folder}/{file}", parse)
            assert found["tf_hvd_calls_total", str(rank), None] == 20
            assert found["tf_hvd_bytes_total", str(rank), None] == 10 * 40
            assert found["tf_hvd_steps_total", str(rank), None] == 9
            assert found["tf_hvd_failed_calls_total", str(rank), None] == 0
        waited = found.get(("tf_hvd_waiting_seconds_total", str(rank), "1"), 0)
        assert (waited > 0.15) == (rank == 0)


def test_unwritable_metrics_file_is_a_warning(call, environ, program):
    words = program("import tf_hvd as hvd\nhvd.init()\n")
    code, _, errors = call(
        "run", "-np", "2", "--metrics", "/no/such/m.prom", *words, environ=environ
    )
    assert code == 0, errors
    assert "the metrics cannot be written to /no/such/m.prom: No such file or directory" in errors


def test_planted_link_is_not_followed(call, environ, program, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("m.prom.new", "link.prom"):
        (tmp_path / name).symlink_to(victim)
    words = program("import tf_hvd as hvd\nhvd.init()\n")
    for name in ("m.prom", "link.prom"):
        environ["TF_HVD_METRICS"] = str(tmp_path / name)
        code, _, errors = call("run", "-np", "1", *words, environ=environ)
        assert code == 0, errors
        assert ("it is a symbolic link, not a file" in errors) == (name == "link.prom")
    assert victim.read_text() == "precious"
    assert "tf_hvd_calls_total" in (tmp_path / "m.prom").read_text()
