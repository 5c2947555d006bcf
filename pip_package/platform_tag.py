"""Which platforms a wheel runs on, by the symbols that its libraries really want."""

import pathlib

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.wheel_abi import analyze_wheel_abi

# Found where it is: in the TensorFlow that has loaded it before ours is opened.
# MPI's libraries are opened by name at run time, so that none is wanted here.
OUTSIDE = frozenset({"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"})


class NotPortableError(Exception):
    """The wheel would run on this machine alone."""


def platform_tag(wheel: pathlib.Path) -> str:
    """The oldest manylinux tag whose policy (PEP 600) the wheel keeps.

    Raises:
      NotPortableError: it keeps none; the text has the library or instruction set.
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
            f"{wheel.name} keeps no manylinux policy; libraries that no policy has: {libraries}"
        )
    return str(policy.name)
