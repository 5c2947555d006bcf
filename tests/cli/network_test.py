"""The interfaces on which a job on one machine listens, and jobs that count as such."""

import ipaddress
import os
import socket
import sys
from types import SimpleNamespace

import pytest

from tf_hvd.launch.commands.main import make_parser
from tf_hvd.launch.job import network
from tf_hvd.launch.job.asked import job_of
from tf_hvd.launch.job.network import LISTENING, listening_on_loopback, names

# Rank 0 checks after all ranks have joined and opened their sockets. Rank 1 opens its own socket.
LISTENERS = """
import ipaddress, socket
import psutil
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
own = socket.create_server(("0.0.0.0", 0)) if rank == 1 else None
hvd.barrier()
if rank == 0:
    job = [p for p in psutil.Process().parents() if "tf_hvd_command" in p.cmdline()][0]
    for process in job.children(recursive=True):
        for each in process.net_connections("inet"):
            if each.status == psutil.CONN_LISTEN:
                outside = not ipaddress.ip_address(each.laddr.ip).is_loopback
                say(process.name(), "beyond" if outside else "loopback")
    say("preloaded", os.environ.get("LD_PRELOAD"))
hvd.barrier()
"""


@pytest.mark.wire
def test_job_on_one_machine_listens_only_on_loopback(environ, family, call, program):
    """Ranks of Open MPI and MPICH, prterun and Hydra used to listen on every interface."""
    code, output, errors = call("run", "-np", "2", *program(LISTENERS), environ=environ)
    assert code == 0, errors
    lines = output.splitlines()
    assert [line for line in lines if line.endswith(" beyond")] == ["python beyond"], (
        "only the program's own socket listens on other interfaces, as the program requested"
    )
    launcher = {"openmpi": "prterun", "mpich": "mpiexec.hydra"}[family]
    assert f"{launcher} loopback" in lines
    assert "preloaded None" in lines


@pytest.mark.parametrize(
    ("hosts", "words", "expected"),
    [
        (None, "", True),
        ("here:2", "", True),
        ("localhost:2", "--bind-to socket", True),
        ("here:1,there:1", "", False),
        (None, "--host here:1,there:1", False),
        (None, "-hosts=here,there", False),
        (None, "-rmk pbs", False),
        (None, "-iface eth0", True),
    ],
)
def test_jobs_that_stay_on_one_machine(monkeypatch, hosts, words, expected):
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    given = ["-H", hosts] if hosts else []
    command = ["run", "-np", "2", *given, f"--mpi-args={words}", sys.executable]
    assert job_of(make_parser().parse_args(command), {}).here is expected


def test_options_that_choose_interfaces():
    assert names(("-iface", "eth0"), LISTENING)
    assert names(("-localhost=a",), LISTENING)
    assert not names(("-bind-to", "socket"), LISTENING)


def test_users_preloaded_library_is_kept(tmp_path):
    theirs = listening_on_loopback(tmp_path, {"LD_PRELOAD": "libjemalloc.so"})["LD_PRELOAD"]
    assert theirs.endswith("/libtf_hvd_listen.so:libjemalloc.so")
    plain = listening_on_loopback(tmp_path, {})
    assert os.path.basename(plain["LD_PRELOAD"]) == "libtf_hvd_listen.so"


PRELOADED = "say(os.environ.get('LD_PRELOAD'))"


def test_ranks_preload_only_the_users_libraries(environ, call, program):
    environ["LD_PRELOAD"] = "libc.so.6"
    code, output, errors = call("run", "-np", "2", *program(PRELOADED), environ=environ)
    assert (code, output) == (0, "libc.so.6\n" * 2), errors


@pytest.mark.parametrize(
    ("common", "expected"),
    [
        (["10.0.0.0/24"], "10.0.0.0/24"),
        ([], ""),
        (["10.0.0.0/24", "10.1.0.0/16"], ""),
        # The machine that starts a job may not be part of it.
        (["192.168.7.0/24"], ""),
    ],
)
def test_common_network_of_a_job(monkeypatch, common, expected):
    own = {"lo": "127.0.0.1/8", "a": "10.0.0.1/24", "b": "10.1.0.1/16"}
    interfaces = {name: ipaddress.IPv4Interface(text) for name, text in own.items()}
    addresses = {
        name: [
            SimpleNamespace(family=socket.AF_INET, address=str(one.ip), netmask=str(one.netmask))
        ]
        for name, one in interfaces.items()
    }
    monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: addresses)
    assert network.jobs_network(common) == expected
