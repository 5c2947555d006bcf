"""The check of hosts before a job: the arguments of ssh, and the messages for its answers.

`ssh` is a script here; tests/nodes uses real SSH.
"""

import argparse
import os
import re
import sys

import pytest

from tf_hvd.launch.commands.main import Parser, start
from tf_hvd.launch.errors import HostsError, UsageError
from tf_hvd.launch.job.host_check import Needs, check_hosts
from tf_hvd.launch.job.hosts import Host
from tf_hvd.launch.job.launchers import Launcher
from tf_hvd.launch.job.remote_commands import goes_by_ssh, ssh_command

MPIRUN = "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n"


@pytest.fixture
def needs(tmp_path):
    """The needs of a job with an ssh that runs these lines of /bin/sh, then its command, here."""

    def make(before="", program="sh", python="", ssh="", **environ):
        for name, text in {
            "ssh": f'#!/bin/sh\n{before}\nexec "/bin/sh"\n',
            "mpirun": MPIRUN,
        }.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o700)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        launcher = Launcher("openmpi", str(tmp_path / "mpirun"))
        environ = {**os.environ, "PATH": path, **environ}
        return Needs(launcher, program, python, environ, ssh_command("openmpi", environ, ssh))

    return make


def complaints(needs, *names):
    with pytest.raises(UsageError) as raised:
        check_hosts([Host(name, 1) for name in names], needs)
    return str(raised.value).splitlines()


def test_matching_hosts_pass_silently(needs):
    check_hosts([Host("a", 1), Host("localhost", 1), Host("b", 2)], needs(python=sys.executable))


def test_private_networks_are_found(needs, tmp_path):
    """Docker's bridge has the same address everywhere, so Open MPI waited indefinitely in init."""
    (tmp_path / "ip").write_text("""#!/bin/sh
echo '1: lo    inet 127.0.0.1/8 scope host lo'
echo '3: docker0    inet 172.17.0.1/16 scope global docker0'
echo '4: br0    inet 10.9.0.1/24 brd 10.9.0.255 scope global br0'
echo "$OWN"
""")
    (tmp_path / "ip").chmod(0o700)
    each = """case "$*" in
    *" a "*) OWN='2: eth0    inet 10.0.0.1/24 scope global eth0' ;;
    *" b "*) OWN='2: eth0    inet 10.0.0.2/24 scope global eth0' ;;
    *" c "*) OWN='2: eth0    inet 10.9.0.2/24 scope global eth0' ;;
    esac
    export OWN"""
    asked = needs(each)

    def networks(*names):
        return check_hosts([Host(name, 1) for name in names], asked)

    assert networks("a")[0] == []
    assert networks("a", "b") == (["10.9.0.0/24", "172.17.0.0/16"], ["10.0.0.0/24"])
    assert networks("a", "b", "c") == (["172.17.0.0/16"], [])


def test_login_may_print_text(needs):
    check_hosts([Host("a", 1)], needs("echo Welcome to a; echo 'last login: today' >&2"))


def test_ssh_gets_its_arguments_and_asks_for_nothing(needs, tmp_path):
    given = tmp_path / "given"
    settings = {"PRTE_MCA_plm_ssh_args": "-p 2222"}
    check_hosts([Host("a", 1)], needs(f'echo "$*" > {given}', ssh="-i key", **settings))
    assert given.read_text().startswith("-x -o BatchMode=yes -o ConnectTimeout=")
    assert given.read_text().endswith(" -p 2222 -i key a /bin/sh\n")


def test_each_faulty_host_has_a_line(needs):
    answers = """
    case "$*" in
    *" a "*) echo "ssh: connect to host a port 22: Connection refused" >&2; exit 255 ;;
    *" b "*) echo "Something new." >&2; exit 255 ;;
    *" c "*) echo "sh: not found" >&2; exit 127 ;;
    esac"""
    assert complaints(needs(answers), "a", "b", "c", "d") == [
        "host a: ssh: connect to host a port 22: Connection refused; check that an SSH server runs "
        "there, at this port (-p PORT)",
        "host b: Something new; check that `ssh b true` works",
        "host c: the check there failed: sh: not found",
    ]


def test_each_faulty_host_has_the_prefix(capsys):
    """The second line had none."""

    def begin(options):
        raise HostsError([("a", "host a: no answer"), ("b", "host b: no answer")])

    with pytest.raises(SystemExit):
        start(argparse.Namespace(start=begin, parser=Parser(prog="tf_hvd run")))
    expected = "tf_hvd run: host a: no answer\ntf_hvd run: host b: no answer\n"
    assert capsys.readouterr().err == expected


def test_damaged_installation_is_named(needs, tmp_path):
    """It was a TypeError of None and str: the metadata was empty."""
    (tmp_path / "broken" / "tf_hvd-0.1.0.dist-info").mkdir(parents=True)
    folder = str(tmp_path / "broken")
    code = f"import sys; sys.path.insert(0, {folder!r}); import hashlib"
    there = f"sed 's|^import hashlib|{code}|' | /bin/sh; exit"
    there = there.replace(repr(folder), f'"{folder}"')
    assert complaints(needs(there, python=sys.executable), "beta") == [
        "host beta: the installation of tf_hvd there is damaged (no version); reinstall it"
    ]


def test_differences_show_both_values(needs, tmp_path):
    other = tmp_path / "other"
    other.write_text(MPIRUN.replace("5.0.11", "4.1.4"))
    other.chmod(0o700)
    # One after the other, because the launcher that `b` finds is copied in between.
    answers = f"""
    case "$*" in
    *" a "*) /bin/sh; touch {tmp_path}/asked; exit ;;
    *" b "*) until [ -e {tmp_path}/asked ]; do sleep 0.02; done; cp {other} {tmp_path}/mpirun ;;
    esac"""
    assert complaints(needs(answers), "a", "b") == [
        "host b: it has MPI 4.1.4, but a has 5.0.11; all hosts need the same version"
    ]


def test_versions_are_compared_with_this_machine(needs, tmp_path):
    """An elastic job excludes the other host and continues."""
    other = tmp_path / "other"
    other.write_text(MPIRUN.replace("5.0.11", "4.1.4"))
    other.chmod(0o700)
    there = needs(f"sed 's|{tmp_path}/mpirun|{other}|' | /bin/sh; exit")
    with pytest.raises(HostsError) as raised:
        check_hosts([Host("a", 1), Host("localhost", 1)], there)
    line = "host a: it has MPI 4.1.4, but localhost has 5.0.11; all hosts need the same version"
    assert raised.value.wrong == [("a", line)]


def test_shell_words_are_quoted(needs, tmp_path, monkeypatch):
    folder = tmp_path / "it's a {folder}; $(false)"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (line,) = complaints(needs(program="no 'such' $program"), "a")
    assert line == "host a: no program no 'such' $program there; all hosts need it at the same path"


@pytest.mark.parametrize(
    ("family", "words", "environ", "by_ssh"),
    [
        ("openmpi", (), {}, True),
        ("mpich", ("-print-all-exitcodes",), {"PRTE_MCA_plm_ssh_args": "-p 2"}, True),
        ("slurm", (), {}, False),
        ("openmpi", (), {"SLURM_JOB_ID": "7"}, False),
        ("openmpi", ("--prtemca", "plm", "tm"), {}, False),
        ("mpich", ("-launcher", "rsh"), {}, False),
        ("mpich", (), {"HYDRA_LAUNCHER": "rsh"}, False),
    ],
)
def test_hosts_not_reached_by_ssh_are_not_checked(family, words, environ, by_ssh):
    assert goes_by_ssh(Launcher(family, "mpirun"), words, environ) is by_ssh


def test_facts_are_from_the_programs_python(needs):
    other = '{"tf_hvd": "none", "TensorFlow": "2.19", "MPI": "(Open MPI) 5.0.11"}'
    answers = f"""case "$*" in *" b "*) echo 'tf_hvd found {other}'; exit ;; esac"""
    lines = complaints(needs(answers, python=sys.executable), "a", "b")
    assert re.fullmatch(r"host b: it has no tf_hvd, but a has .*; all hosts .*", lines[0])
    assert re.fullmatch(
        r"host b: it has TensorFlow 2\.19, but a has 2\.21.*; all hosts .*", lines[1]
    )


@pytest.mark.parametrize(("python", "lacks"), [("/no/python3", True), ("", False)])
def test_machine_without_python(needs, tmp_path, python, lacks):
    """It reports nothing. It cannot run ranks of a program that needs Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    there = f"sed 's|^PATH=.*|PATH={tmp_path}/bin|; s|{sys.executable}|/no/python|' | /bin/sh; exit"
    asked = needs(f'case "$*" in *" b "*) {there} ;; esac', python=python)
    if lacks:
        assert complaints(asked, "b") == [
            "host b: no program /no/python3 there; all hosts need it at the same path"
        ]
    else:
        check_hosts([Host("localhost", 1), Host("b", 1)], asked)
