"""The hosts that schedulers allocate to a job, in the formats of their manuals."""

import argparse

import pytest

from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import asked
from tf_hvd.launch.job.allocation import allocation, expand


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", "n1"),
        ("alpha,beta", "alpha beta"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-11,20]", "n08 n09 n10 n11 n20"),
        ("gpu[1,3]-ib,login1", "gpu1-ib gpu3-ib login1"),
        ("a[1-2],b,c[007]", "a1 a2 b c007"),
        ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
    ],
)
def test_slurm_short_form_is_expanded(nodes, names):
    assert [*expand(nodes)] == names.split()


def listed(environ):
    found = allocation(environ)
    return None if found is None else (found.scheduler, ",".join(map(str, found.hosts)))


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1"}


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({}, None),
        (SLURM, ("Slurm", "n1:2,n2:2,n3:1")),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "4(x3)"}, ("Slurm", "n1:4,n2:4,n3:4")),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "1,2,3"}, ("Slurm", "n1:1,n2:2,n3:3")),
        ({"SLURM_JOB_NODELIST": "n1"}, None),  # left over, outside of a job
        (
            {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "8"},
            ("Slurm", "n1:8"),
        ),
        ({"LSB_MCPU_HOSTS": "hostA 4 hostB 2 "}, ("LSF", "hostA:4,hostB:2")),
        ({"LSB_MCPU_HOSTS": ""}, None),
    ],
)
def test_variables(environ, hosts):
    assert listed(environ) == hosts


@pytest.mark.parametrize(
    ("variable", "text", "hosts"),
    [
        ("PBS_NODEFILE", "n1\nn1\nn2\nn1\n", ("PBS", "n1:3,n2:1")),
        ("LSB_DJOB_HOSTFILE", "b\nb\na\n", ("LSF", "b:2,a:1")),
        (
            "PE_HOSTFILE",
            "n1.site 4 all.q@n1.site UNDEFINED\nn2.site 2 all.q@n2.site <NULL>\n",
            ("Grid Engine", "n1.site:4,n2.site:2"),
        ),
        ("PBS_NODEFILE", "", None),
        # Kubeflow's operators, for Open MPI, MPICH and Intel MPI.
        (
            "OMPI_MCA_orte_default_hostfile",
            "train-worker-0.train.default.svc slots=2\ntrain-worker-1.train.default.svc slots=2\n",
            ("MPI", "train-worker-0.train.default.svc:2,train-worker-1.train.default.svc:2"),
        ),
        ("PRTE_MCA_prte_default_hostfile", "a slots=1\n", ("MPI", "a:1")),
        ("HYDRA_HOST_FILE", "a:4\nb:4\n", ("MPI", "a:4,b:4")),
        ("I_MPI_HYDRA_HOST_FILE", "a:4\n", ("MPI", "a:4")),
    ],
)
def test_files(variable, text, hosts, tmp_path):
    file = tmp_path / "nodes"
    file.write_text(text)
    assert listed({variable: str(file)}) == hosts


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({**SLURM, "SLURM_TASKS_PER_NODE": "2(x2)"}, "SLURM_TASKS_PER_NODE=2(x2)"),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "two"}, "SLURM_TASKS_PER_NODE=two"),
        ({**SLURM, "SLURM_JOB_NODELIST": "n[1-"}, "n[1-"),
        ({"LSB_MCPU_HOSTS": "hostA 4 hostB"}, "LSB_MCPU_HOSTS=hostA 4 hostB"),
        ({"PBS_NODEFILE": "/no/such/file"}, "PBS_NODEFILE /no/such/file: No such file"),
    ],
)
def test_unreadable_allocation_is_an_error(environ, told):
    with pytest.raises(UsageError) as raised:
        allocation(environ)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"FLUX_URI": "local:///run/flux/local"}, "Flux"),
        ({"COBALT_JOBID": "7"}, "Cobalt"),
        ({"LOADL_STEP_ID": "a.7.0"}, "LoadLeveler"),
    ],
)
def test_schedulers_known_only_by_name(environ, name):
    assert listed(environ) == (name, "")
    assert listed({**environ, **SLURM})[0] == "Slurm"


def test_running_only_here_is_reported(capsys):
    flux = {"FLUX_URI": "local:///run/flux/local"}
    told = (
        "tf_hvd run: all ranks run on this machine, because the hosts of this Flux job are "
        "unknown; list hosts with -H\n"
    )
    assert hosts_of_job(flux, 2) == (2, "")
    assert capsys.readouterr().err == told
    # No message: one rank, a rank's own job, the user's hosts, a known scheduler, a later start.
    hosts_of_job(flux, 1)
    hosts_of_job({**flux, "PMIX_RANK": "0"}, 2)
    hosts_of_job(flux, 2, hosts="a:2")
    hosts_of_job(flux, 2, mpi_args="--hostfile mine")
    hosts_of_job({**flux, **SLURM}, 2)
    hosts_of_job({**flux, "TF_HVD_ELASTIC_START": "1"}, 2)
    assert capsys.readouterr().err == ""
    hosts_of_job({**flux, "TF_HVD_ELASTIC_START": "0"}, 2)
    assert capsys.readouterr().err == told


def hosts_of_job(environ, ranks=None, **options):
    given = {"np": ranks, "hosts": None, "hostfile": None, "mpi_args": "", **options}
    namespace = argparse.Namespace(**given)
    hosts = asked._hosts(namespace, environ)
    return namespace.np, ",".join(map(str, hosts))


def test_job_uses_the_allocation():
    assert hosts_of_job(SLURM) == (5, "n1:2,n2:2,n3:1")
    assert hosts_of_job(SLURM, 5) == (5, "n1:2,n2:2,n3:1")
    # Only hosts that get ranks, because the others need not be reached.
    assert hosts_of_job(SLURM, 3) == (3, "n1:2,n2:2")
    assert hosts_of_job(SLURM, hosts="n3:1") == (1, "n3:1")
    # A single rank runs here, whatever hosts are allocated.
    assert hosts_of_job(SLURM, 1) == (1, "")
    assert hosts_of_job({**SLURM, "PMIX_RANK": "0"}, 4) == (4, "")
    assert hosts_of_job(SLURM, 4, mpi_args="--hostfile mine") == (4, "")
    assert hosts_of_job({}, 2) == (2, "")


def test_more_ranks_than_allocated_are_refused():
    with pytest.raises(UsageError) as raised:
        hosts_of_job(SLURM, 6)
    assert str(raised.value) == (
        "-np 6 is more than the 5 slots of n1:2,n2:2,n3:1; ask Slurm for more (--ntasks, "
        "--ntasks-per-node), or list hosts with -H"
    )
    with pytest.raises(UsageError, match="the number of ranks is missing"):
        hosts_of_job({})
