"""Prints the path of TensorFlow and the flags to compile against it, for Bazel."""

import tensorflow as tf


def main() -> None:
    flags = tf.sysconfig.get_compile_flags()
    defines = [f[2:] for f in flags if f.startswith("-D")]
    libraries = [f[3:] for f in tf.sysconfig.get_link_flags() if f.startswith("-l:")]
    print(f"include={tf.sysconfig.get_include()}")
    print(f"lib={tf.sysconfig.get_lib()}")
    print(f"library={libraries[0]}")
    print(f"defines={' '.join(defines)}")
    print(f"version={tf.__version__}")
    print(f"compiler={tf.version.COMPILER_VERSION}")


main()
