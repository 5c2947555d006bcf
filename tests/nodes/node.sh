#!/usr/bin/env bash
# The first process on a node: sets its host name, mounts its own file systems,
# waits for its cable, starts its ssh server, and then reaps orphaned processes.
#   node.sh <name> <address> <the cluster's folder>
set -euo pipefail
name=$1 address=$2 folder=$3

home=~root
hostname "${name}"
mount -t proc proc /proc
mount -t tmpfs -o mode=1777,size=1g tmpfs /dev/shm
mkdir -p /run/sshd "${home}/.ssh"
mount -t tmpfs -o mode=755 tmpfs /run/sshd
mount -t tmpfs -o mode=700 tmpfs "${home}/.ssh"
mount --bind "${folder}/hosts" /etc/hosts
install -m 600 "${folder}/key" "${home}/.ssh/id_ed25519"
install -m 600 "${folder}/key.pub" "${home}/.ssh/authorized_keys"
install -m 600 "${folder}/known_hosts" "${home}/.ssh/known_hosts"

until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip address add "${address}/24" dev eth0
ip link set eth0 up
# Nodes reuse the same process ids, which name files in the temporary folder, so
# each node has its own.
/usr/sbin/sshd -f /dev/null -h "${folder}/host_key" -o PidFile=none -o UsePAM=no \
  -o PermitRootLogin=prohibit-password -o MaxStartups=100 -o SetEnv=TMPDIR=/run/sshd
touch "${folder}/${name}.up"
while :; do
  sleep 3600 &
  wait || true
done
