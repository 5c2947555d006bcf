"""Where a job on one machine listens, and when it is one."""

import os

import pytest

from tf_hvd.launch.job import network
from tf_hvd.launch.job.allocation import unscheduled
from tf_hvd.launch.job.environment import own_settings, without_launcher
from tf_hvd.launch.job.hosts import Host
from tf_hvd.launch.job.network import (
    closed_transports,
    listening_on_loopback,
    says_where_to_listen,
    stays_here,
)

# Rank 0 looks when all have joined, and so have opened what they open; rank 1 listens itself.
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
def test_a_job_on_one_machine_listens_on_nothing_beyond_loopback(environ, family, call, program):
    """Ranks of Open MPI and MPICH, prterun and Hydra all listened on every interface."""
    code, output, errors = call("run", "-np", "2", *program(LISTENERS), environ=environ)
    assert code == 0, errors
    lines = output.splitlines()
    assert [line for line in lines if line.endswith(" beyond")] == ["python beyond"], (
        "but for what the program itself opens there is nothing: and that is as it asked"
    )
    launcher = {"openmpi": "prterun", "mpich": "mpiexec.hydra"}[family]
    assert f"{launcher} loopback" in lines
    assert "preloaded None" in lines


@pytest.mark.parametrize(
    ("hosts", "words", "expected"),
    [
        ((), (), True),
        ((Host("here", 2),), (), True),
        ((Host("localhost", 2),), ("--bind-to", "socket"), True),
        ((Host("here", 1), Host("there", 1)), (), False),
        ((), ("--host", "here:1,there:1"), False),
        ((), ("-hosts=here,there",), False),
        ((), ("-rmk", "pbs"), False),
        ((), ("-iface", "eth0"), True),
    ],
)
def test_which_jobs_stay_on_one_machine(hosts, words, expected):
    assert stays_here(hosts, words, "here") is expected


def test_who_says_where_to_listen():
    assert says_where_to_listen(("-iface", "eth0"))
    assert says_where_to_listen(("-localhost=a",))
    assert not says_where_to_listen(("-bind-to", "socket"))


def test_transports_that_the_user_chooses_stay_open():
    closed = closed_transports((), {})
    assert closed == {
        "OMPI_MCA_btl": "^tcp,ofi",
        "UCX_TLS": "^tcp",
        "FI_PROVIDER": "^tcp,sockets,udp,net,sm2",
    }
    chosen = {"OMPI_MCA_btl": "self,tcp", "FI_PROVIDER": "verbs"}
    assert closed_transports((), chosen) == {"UCX_TLS": "^tcp"}
    words = ("--mca", "btl", "self,tcp")
    assert closed_transports(words, {"UCX_TLS": "all", "FI_PROVIDER": "x"}) == {}


def test_a_job_that_a_rank_starts_may_go_to_other_machines():
    rank = {"OMPI_COMM_WORLD_RANK": "0", "UCX_LOG_LEVEL": "info"}
    ours = own_settings(closed_transports((), rank) | unscheduled("openmpi", rank))
    assert "OMPI_MCA_plm" in ours
    assert without_launcher({**rank, **ours}) == {"UCX_LOG_LEVEL": "info"}
    assert own_settings({}) == {}


def test_a_library_of_the_users_stays_preloaded(tmp_path):
    theirs = listening_on_loopback(tmp_path, {"LD_PRELOAD": "libjemalloc.so"})["LD_PRELOAD"]
    assert theirs.endswith("/libtf_hvd_listen.so:libjemalloc.so")
    alone = listening_on_loopback(tmp_path, {})
    assert os.path.basename(alone["LD_PRELOAD"]) == "libtf_hvd_listen.so"


PRELOADED = "say(os.environ.get('LD_PRELOAD'))"


def test_ranks_have_what_the_user_preloads_and_no_more(environ, call, program):
    environ["LD_PRELOAD"] = "libc.so.6"
    code, output, errors = call("run", "-np", "2", *program(PRELOADED), environ=environ)
    assert (code, output) == (0, "libc.so.6\n" * 2), errors


@pytest.mark.parametrize(
    ("common", "expected"),
    [
        (["10.0.0.0/24"], "10.0.0.0/24"),
        ([], ""),
        (["10.0.0.0/24", "10.1.0.0/16"], ""),
        # The machine that starts a job need not be one of it.
        (["192.168.7.0/24"], ""),
    ],
)
def test_the_network_of_a_job(monkeypatch, common, expected):
    own = ["127.0.0.0/8", "10.0.0.0/24", "10.1.0.0/16"]
    monkeypatch.setattr(network, "_own_networks", lambda: own)
    assert network.jobs_network(common) == expected
