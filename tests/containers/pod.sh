#!/usr/bin/env bash
# Gives a node of tests/nodes/cluster.py an image for its root, at /mnt/root, as a
# container has it.
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
# A pod knows itself by its short name as well.
sed "s/ ${own}${service}\$/ ${own}${service} ${own}/" "${folder}/hosts" >"${root}/etc/hosts"
