#!/bin/sh
# What `make test-cluster` needs beside Python packages: installed on Debian, named elsewhere.
missing=""
for program in slurmctld slurmd munged; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge
else
    echo "Missing for the tests of SLURM, which are left out:$missing (Debian: apt-get install slurm-wlm munge)." >&2
fi
