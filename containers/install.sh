#!/bin/sh
# Installs tf_hvd into an image of Debian 12 or later, or Ubuntu 22.04 or later:
#   install.sh cpu|gpu [openmpi|mpich]
# The wheel is next to this script; if there are several, pip takes the newest that fits. Also
# installs the parts for jobs on several machines: an ssh client that asks no questions, and a user
# that may run an ssh server, as Kubeflow's MPIJob and TrainJob require (docs/schedulers.md).
set -eu

kind=${1:?cpu or gpu}
mpi=${2:-openmpi}
here=$(cd "$(dirname "$0")" && pwd -P)
user=mpiuser
port=2222

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends \
  ca-certificates openssh-client openssh-server python3 python3-venv
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/tf_hvd
pip() { /opt/tf_hvd/bin/python -m pip "$@"; }
pip download --no-index --no-deps --find-links "${here}" --dest "${here}/chosen" tf_hvd
pip install --no-cache-dir "$(echo "${here}"/chosen/*.whl)[${kind},${mpi}]"
ln -s /opt/tf_hvd/bin/tf_hvd /opt/tf_hvd/bin/horovodrun /usr/local/bin/

# Hosts are new in each job, and no user can confirm their keys.
cat >/etc/ssh/ssh_config.d/tf_hvd.conf <<END
Host *
  Port ${port}
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
END

# A server that does not need root; the operator puts the keys into .ssh.
mkdir -p /run/sshd
useradd --create-home --uid 1000 --shell /bin/bash "${user}"
cat >"/home/${user}/.sshd_config" <<END
Port ${port}
PidFile /home/${user}/sshd.pid
HostKey /home/${user}/.ssh/id_rsa
StrictModes no
END
chown "${user}:" "/home/${user}/.sshd_config"
