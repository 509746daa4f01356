#!/usr/bin/env bash
# Make a certificate authority, the server's certificate and the keys of four nodes in secrets/. A hospital on its own
# machine makes its own key there (by ssh-keygen as below) and sends only node.pub to the server.
set -euo pipefail
umask 077
server=${1:-superlink} # the name under which nodes and users reach the server
mkdir -p secrets && cd secrets
[ ! -e ca.key ] || { echo "secrets/ has keys already" >&2 && exit 1; }
openssl ecparam -genkey -name secp384r1 -noout -out ca.key
openssl req -x509 -new -key ca.key -sha384 -days 365 -out ca.crt -subj "/CN=hospitals CA" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
openssl ecparam -genkey -name secp384r1 -noout -out server.key
printf "subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth" "$server" > server.ext
openssl req -new -key server.key -subj "/CN=$server" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out server.pem -extfile server.ext
for node in node-{0..3}; do
    ssh-keygen -q -t ecdsa -b 384 -N "" -f "$node"
done
