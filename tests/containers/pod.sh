#!/usr/bin/env bash
# Mounts an image as the root of a node of tests/nodes/cluster.py, at /mnt/root, as
# in a container.
#   pod.sh <image> <folder of keys and hosts> <program> <where the keys go> <service>
set -euo pipefail
image=$1 folder=$2 program=$3 keys=$4 service=$5
root=/mnt/root
own=$(hostname)

mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work "${root}"
mount -t overlay -o "lowerdir=${image},upperdir=/mnt/upper,workdir=/mnt/work" overlay "${root}"
mount -t proc proc "${root}/proc"
mount --rbind /dev "${root}/dev"
mount -t tmpfs -o mode=1777 tmpfs "${root}/tmp"
mkdir -p "${root}${keys}" "${root}/etc/mpi" "${root}/train"
mount --bind "${program}" "${root}/train"
install -o 1000 -g 1000 -m 600 "${folder}/id_rsa" "${folder}/id_rsa.pub" "${root}${keys}"
install -o 1000 -g 1000 -m 600 "${folder}/id_rsa.pub" "${root}${keys}/authorized_keys"
install -m 644 "${folder}/hostfile" "${root}/etc/mpi/hostfile"
# A pod also resolves its own short name.
sed "s/ ${own}${service}\$/ ${own}${service} ${own}/" "${folder}/hosts" >"${root}/etc/hosts"
