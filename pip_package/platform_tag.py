"""Finds the platforms that a wheel supports, from the symbols that its libraries need."""

import pathlib

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.wheel_abi import analyze_wheel_abi

# Provided by TensorFlow, which is loaded before our library is opened. MPI's libraries are opened
# by name at run time, so none is needed here.
OUTSIDE = frozenset({"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"})


class NotPortableError(Exception):
    """The wheel would run only on this machine."""


def platform_tag(wheel: pathlib.Path) -> str:
    """Return the oldest manylinux tag (PEP 600) with a policy that the wheel satisfies.

    Raises:
      NotPortableError: it satisfies none; the message has the library or instruction set.
    """
    found = analyze_wheel_abi(
        Libc.GLIBC,
        Architecture.x86_64,
        wheel,
        OUTSIDE,
        disable_isa_ext_check=False,
        allow_graft=False,
    )
    policy = found.overall_policy
    if policy == found.policies.linux:
        libraries = sorted(found.external_refs[found.policies.highest.name].libs)
        raise NotPortableError(
            f"{wheel.name} satisfies no manylinux policy; "
            f"libraries outside of all policies: {libraries}"
        )
    return str(policy.name)
