"""The rules of this project's BUILD files."""

load("@cuda//:defs.bzl", "CUDA_TOOLKIT")
load("@mpi//:defs.bzl", "MPI_PREFIXES")
load("@tensorflow//:defs.bzl", "TF_HAS_XLA", "TF_LIBRARY", "TF_LIBRARY_DIR")

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wshadow",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
]

_TF_HEADERS = ["@tensorflow//:headers"]

# Warnings in TensorFlow's inline code, instantiated in our files, are not ours to fix.
_TF_COPTS = ["-Wno-unused-parameter", "-Wno-sign-compare"]

_EXPORTS = "//build_defs:exported_symbols.lds"

def tf_hvd_cc_library(name, copts = [], linkopts = [], **kwargs):
    """A library that depends on neither TensorFlow nor Python.

    Args:
      name: name of the target.
      copts: additional compiler options.
      linkopts: additional linker options.
      **kwargs: cc_library's.
    """
    native.cc_library(
        name = name,
        copts = COPTS + copts,
        linkopts = linkopts + ["-pthread"],
        linkstatic = True,
        **kwargs
    )

def tf_hvd_tf_library(name, deps = [], copts = [], tags = [], **kwargs):
    """A library that includes TensorFlow's headers.

    Its static registrations are kept in every program that links it.

    Args:
      name: name of the target.
      deps: dependencies besides TensorFlow's headers.
      copts: additional compiler options.
      tags: tags besides no_sanitizer.
      **kwargs: cc_library's.
    """
    tf_hvd_cc_library(
        name = name,
        deps = deps + _TF_HEADERS,
        copts = _TF_COPTS + copts,
        tags = tags + ["no_sanitizer"],
        alwayslink = True,
        **kwargs
    )

def tf_hvd_op_library(name, **kwargs):
    """The registration of ops: signature, shape function and documentation."""
    tf_hvd_tf_library(name = name, **kwargs)

def tf_hvd_nvcc_check(name, src, hdrs):
    """Compiles GPU code with nvcc for its warnings, only with --config=cuda.

    Nothing depends on the object: NVRTC compiles the code that runs on GPUs.

    Args:
      name: name of the target.
      src: a .cu.cc file.
      hdrs: files that it includes.
    """
    native.genrule(
        name = name,
        srcs = [src] + hdrs,
        outs = [name + ".o"],
        cmd = "$(location //build_defs:nvcc.sh) '%s' $@ $(location %s)" % (CUDA_TOOLKIT, src),
        tags = ["no_sanitizer", "nvcc"],
        tools = ["//build_defs:nvcc.sh"],
    )

def tf_hvd_cc_test(
        name,
        srcs = None,
        deps = [],
        copts = [],
        linkopts = [],
        tags = [],
        tf = False,
        threads = True,
        size = "small",
        **kwargs):
    """A GoogleTest program.

    Args:
      name: name of the target.
      srcs: by default the file of that name, if it exists.
      deps: dependencies besides GoogleTest.
      copts: additional compiler options.
      linkopts: additional linker options.
      tags: additional tags.
      tf: whether the test, or a dependency, needs TensorFlow. Such a test is
        linked to the installed wheel and does not run under sanitizers.
      threads: whether it starts threads. Otherwise it does not run under
        ThreadSanitizer, which would find nothing.
      size: size of the test; small is 60 seconds.
      **kwargs: cc_test's.
    """
    if srcs == None:
        srcs = native.glob([name + ".cc"], allow_empty = True)
    if not threads:
        tags = tags + ["one_thread"]
    if tf:
        deps = deps + _TF_HEADERS
        copts = _TF_COPTS + copts
        tags = tags + ["no_sanitizer"]
        linkopts = linkopts + [
            "-L" + TF_LIBRARY_DIR,
            "-l:" + TF_LIBRARY,
            "-Wl,-rpath," + TF_LIBRARY_DIR,
        ]
    native.cc_test(
        name = name,
        copts = COPTS + copts,
        deps = deps + ["@gtest//:gtest_main"],
        linkopts = linkopts + ["-pthread"],
        linkstatic = True,
        size = size,
        srcs = srcs,
        tags = tags,
        **kwargs
    )

def tf_hvd_cc_tests(deps = [], without = [], one_thread = [], medium = [], but = {}, **kwargs):
    """A GoogleTest program for each *_test.cc of the folder.

    Args:
      deps: dependencies of all of them; the linker takes the needed parts.
      without: names of files that are not separate tests.
      one_thread: names of tests that start no threads.
      medium: names of tests that may take 5 minutes; all others may take one.
      but: by test name, arguments that replace the above.
      **kwargs: tf_hvd_cc_test's, for all of them.
    """
    for source in native.glob(["*_test.cc"]):
        name = source[:-len(".cc")]
        if name in without:
            continue
        arguments = {
            "deps": deps,
            "size": "medium" if name in medium else "small",
            "threads": name not in one_thread,
        }
        arguments.update(kwargs)
        arguments.update(but.get(name, {}))
        tf_hvd_cc_test(name = name, **arguments)

def tf_hvd_cc_cases(name, src, deps):
    """The tests of a file, compiled once and linked into several programs.

    Args:
      name: name of the target.
      src: the file.
      deps: dependencies besides GoogleTest.
    """
    tf_hvd_cc_library(
        name = name,
        testonly = True,
        srcs = [src],
        alwayslink = True,
        deps = deps + ["@gtest//:gtest"],
    )

def tf_hvd_cc_binary(name, copts = [], linkopts = [], **kwargs):
    """A program that depends on neither TensorFlow nor Python.

    Args:
      name: name of the program.
      copts: additional compiler options.
      linkopts: additional linker options.
      **kwargs: cc_binary's.
    """
    native.cc_binary(
        name = name,
        copts = COPTS + copts,
        linkopts = linkopts + ["-pthread"],
        linkstatic = True,
        **kwargs
    )

def tf_hvd_cc_plugin(name, exports, copts = [], **kwargs):
    """A shared object that depends on neither TensorFlow nor Python.

    Args:
      name: name of the file.
      exports: the linker's version script.
      copts: additional compiler options.
      **kwargs: cc_binary's.
    """
    native.cc_binary(
        name = name,
        additional_linker_inputs = [exports],
        copts = COPTS + copts,
        linkopts = [
            "-pthread",
            "-ldl",
            "-Wl,--version-script=$(location %s)" % exports,
            "-Wl,-z,defs",
        ],
        linkshared = True,
        linkstatic = True,
        **kwargs
    )

# The folder of XLA in TensorFlow's wheels, and the tag of targets that need it: `bazel build
# //...` omits them if XLA's headers are missing.
TF_XLA_LIBRARY = "libtensorflow_cc.so.2"
XLA_TAGS = [] if TF_HAS_XLA else ["manual"]

def tf_hvd_tf_plugin(name, deps, libraries = [], exports = _EXPORTS, tags = [], **kwargs):
    """The shared object that TensorFlow loads.

    It is linked to TensorFlow's framework library only by name: the process
    that loads it has already loaded that library, from any path.

    Args:
      name: name of the file.
      deps: the libraries to include, as a whole.
      libraries: TensorFlow's libraries besides the framework's.
      exports: the linker's version script.
      tags: tags besides no_sanitizer.
      **kwargs: cc_binary's.
    """
    native.cc_binary(
        name = name,
        additional_linker_inputs = [exports, "@tensorflow//:framework_library"],
        linkopts = [
            "-pthread",
            "-ldl",
            "-lrt",
            "-Wl,--version-script=$(location %s)" % exports,
            "-Wl,-z,defs",
            "-L" + TF_LIBRARY_DIR,
            "-l:" + TF_LIBRARY,
        ] + ["-l:" + library for library in libraries],
        linkshared = True,
        linkstatic = True,
        tags = tags + ["no_sanitizer"],
        deps = deps,
        **kwargs
    )

def tf_hvd_mpi_shim(name, family, srcs, deps = [], **kwargs):
    """The table of MPI functions, compiled against one family's mpi.h.

    No MPI library is linked: functions are looked up at run time.

    Args:
      name: name of the shared object.
      family: openmpi or mpich.
      srcs: sources, the same for each family.
      deps: dependencies besides the family's headers.
      **kwargs: cc_binary's.
    """
    native.cc_binary(
        name = name,
        srcs = srcs,
        additional_linker_inputs = [_EXPORTS],
        copts = COPTS,
        deps = deps + ["@mpi//:%s_headers" % family],
        linkopts = [
            "-ldl",
            "-Wl,--version-script=$(location %s)" % _EXPORTS,
            "-Wl,-z,defs",
        ],
        linkshared = True,
        linkstatic = True,
        tags = ["no_sanitizer"],
        **kwargs
    )

def mpi_test(name, program, ranks, families = ["openmpi", "mpich"], args = [], data = [], tags = [], size = "small"):
    """Runs a program under the launcher of each MPI family.

    The program sees TF_HVD_MPI_LIBRARY, the path of that family's library.

    Args:
      name: name of the suite; the tests are called <name>_<family>.
      program: label of an executable, usually a cc_binary.
      ranks: number of ranks.
      families: the MPI families.
      args: arguments of the program.
      data: files that the program reads.
      tags: additional tags.
      size: size of the test.
    """
    for family in families:
        native.sh_test(
            name = "%s_%s" % (name, family),
            srcs = ["//build_defs:mpi_test.sh"],
            args = [family, MPI_PREFIXES[family] or "/missing", str(ranks), "$(location %s)" % program] + args,
            data = data + [program],
            size = size,
            tags = tags + ["no_sanitizer", "cpu:2"],
        )
    native.test_suite(
        name = name,
        tests = ["%s_%s" % (name, family) for family in families],
    )
