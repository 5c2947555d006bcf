#!/bin/sh
# This machine's compiler with the C and C++ libraries of an older one.
# Written into the sysroot by ./dev wheel --portable. Without warnings: those of our code are
# errors of the plain build, and newer compilers report false ones in the older headers.
root=@SYSROOT@
libraries=x86_64-linux-gnu
# Not for C: Bazel checks the compiler's flags with it.
own=-nostdinc++
for argument in "$@"; do
  case "${argument}" in
    -xc | *.c) own= ;;
  esac
done
exec gcc --sysroot="${root}" ${own} \
  -isystem "${root}/usr/include/c++/8" \
  -isystem "${root}/usr/include/${libraries}/c++/8" \
  -isystem "${root}/usr/include/c++/8/backward" \
  -B"${root}/usr/lib/${libraries}" \
  -L"${root}/usr/lib/gcc/${libraries}/8" \
  -L"${root}/usr/lib/${libraries}" \
  -L"${root}/lib/${libraries}" \
  "$@" -w
