#!/bin/sh
# Certificates and options for the cluster of compose.yaml, once: certificates that are there stay.
#
#   setup.sh [FOLDER]    the root, or another folder, gets
#     authority          the authority, which only this container sees
#     hosts/NAME         what the container NAME finds at /etc/suture: its options, and in tls/ its
#                        certificate, its key, and whom it believes
set -eu
umask 077
cd "${1:-/}"

issued() { # certificate and key for a host of that name, with the roles that follow
    name=$1
    shift
    [ ! -e "hosts/$name/tls/key.pem" ] || return 0
    suture tls issue authority "$@"
    mkdir -p "hosts/$name/tls"
    cp authority/ca.pem "hosts/$name/tls/ca.pem"
    cp "authority/$name.pem" "hosts/$name/tls/certificate.pem"
    mv "authority/$name.key" "hosts/$name/tls/key.pem" # last: it says that the others are there
}

files() { # of certificates, as options name them: with a prefix
    for file in "certificate certificate" "key key" "ca ca"; do
        echo "$1${file% *} = \"/etc/suture/tls/${file#* }.pem\""
    done
}

[ -e authority/ca.pem ] || suture tls init authority
issued scm --role scm --host scm
files tls_ >hosts/scm/scm.toml
for name in datanode1 datanode2 datanode3; do
    issued "$name" --role peer --host "$name"
    {
        printf '[node]\nlisten = "0.0.0.0:9859"\nadvertise = "%s:9859"\nscm = "scm:9860"\n' "$name"
        printf '[storage]\nvolumes = ["/var/lib/suture/volume1"]\n[tls]\n'
        files ""
    } >"hosts/$name/agent.toml"
done
issued operator --role admin --role client --name operator
{
    echo "[tls]"
    files ""
} >hosts/operator/client.toml
