#!/usr/bin/env bash
# The least time that Kubernetes costs by hand, for one known cluster: containerd, kubeadm, flannel and NVIDIA's device plugin on
# three fresh Debian 13 nodes. One connection and one script per node, all at once; whatever can start early does. It checks nothing
# beforehand, records nothing, works once, and leaves out all that is not Kubernetes: users, firewall, time, metrics, encryption of
# secrets, the audit log, signed serving certificates. It ends when a pod on each worker has seen its two GPUs.
#
# usage: floor-kubernetes.sh DIRECTORY      with key and known_hosts of the nodes in it; the rest comes by the environment:
#   LOGIN PROXY AUTHORITY (PEM)             login; the packages' proxy; the authority of the servers of packages and images
#   HEAD WORKERS                            "name address", one worker on each line
#   VERSION REPOSITORY                      Kubernetes' release, and where its packages are
#   TOOLKIT_VERSION TOOLKIT_REPOSITORY      the same of NVIDIA's container toolkit
#   MIRRORS                                 "registry server path", one on each line
#   CGROUPS KUBELET FLANNEL PLUGIN IMAGE    version of cgroups; KubeletConfiguration (JSON); images
# shellcheck disable=SC2153  # those names come from the environment
set -euo pipefail
directory=$1
read -r HEAD_NAME HEAD_IP <<<"$HEAD"
# Workers may ask for the API before there is one, so the token is made beforehand.
TOKEN=$(od -A n -N 3 -t x1 /dev/urandom | tr -d ' \n').$(od -A n -N 8 -t x1 /dev/urandom | tr -d ' \n')

# ------------------------------------------------------------------------------------------------- on every node

mark() { # WHAT: say when it was done, in seconds since this node began
  local passed=$((${EPOCHREALTIME/[.,]/} - BEGAN))
  printf '%5d.%d s  %s: %s\n' $((passed / 1000000)) $((passed / 100000 % 10)) "$(uname -n)" "$1"
}

failed() { # show how kubeadm has ended
  tail -n 20 /tmp/kubeadm
  exit 1
}

put() { # PATH [MODE]: standard input becomes a file
  mkdir -p "${1%/*}"
  install -m "${2:-0644}" /dev/stdin "$1"
}

source_of() { # NAME URL KEY: a flat source of packages with the key that it has beside them
  curl --silent --show-error --fail "$3" | put "/etc/apt/keyrings/$1.asc"
  printf 'Types: deb\nURIs: %s/\nSuites: /\nSigned-By: /etc/apt/keyrings/%s.asc\n' "$2" "$1" | put "/etc/apt/sources.list.d/$1.sources"
}

packages() { # one transaction; nothing starts before its configuration is there
  put /usr/local/share/ca-certificates/site.crt <<<"$AUTHORITY"
  update-ca-certificates >/dev/null
  printf 'Acquire::http::Proxy "%s";\nAcquire::https::Proxy "DIRECT";\n' "$PROXY" >/etc/apt/apt.conf.d/90proxy
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod 0755 /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  apt-get -qq update
  apt-get -qq -y --no-install-recommends install curl >/dev/null
  local minor=${VERSION%.*} wanted=(containerd "kubeadm=$VERSION-*" "kubectl=$VERSION-*" "kubelet=$VERSION-*" cri-tools nftables)
  source_of kubernetes "$REPOSITORY/v$minor/deb" "$REPOSITORY/v$minor/deb/Release.key"
  if [ "${1:-}" = gpu ]; then
    source_of toolkit "$TOOLKIT_REPOSITORY/stable/deb/$(dpkg --print-architecture)" "$TOOLKIT_REPOSITORY/gpgkey"
    wanted+=("nvidia-container-toolkit-base=$TOOLKIT_VERSION-*")
  fi
  apt-get -qq update
  mark "package index"
  apt-get -qq -y --no-install-recommends install "${wanted[@]}" >/dev/null
  apt-mark hold kubeadm kubectl kubelet >/dev/null
  rm /usr/sbin/policy-rc.d
  mark packages
}

runtime() { # containerd, with the images' mirrors
  local cri='plugins."io.containerd.grpc.v1.cri"' pause registry server path
  pause=$(kubeadm config images list --kubernetes-version "v$VERSION" 2>/dev/null | grep pause)
  put /etc/containerd/config.toml <<TOML
version = 2
[$cri]
sandbox_image = "$pause"
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
restrict_oom_score_adj = true
[$cri.cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
[$cri.registry]
config_path = "/etc/containerd/certs.d"
[$cri.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[$cri.containerd.runtimes.runc.options]
SystemdCgroup = $([ "$CGROUPS" = 2 ] && echo true || echo false)
TOML
  while read -r registry server path; do
    printf '[host."%s/v2/%s"]\ncapabilities = ["pull", "resolve"]\noverride_path = true\n' "$server" "$path" |
      put "/etc/containerd/certs.d/$registry/hosts.toml"
  done <<<"$MIRRORS"
  printf 'net.ipv4.ip_forward = 1\n' | put /etc/sysctl.d/60-kubernetes.conf
  sysctl -q -w net.ipv4.ip_forward=1
  systemctl enable --quiet containerd kubelet
  systemctl restart containerd
  mark containerd
}

network() { # the plugins of each node's own network, which flannel gives out
  until [ -s /run/flannel/subnet.env ]; do sleep 0.1; done
  # shellcheck source=/dev/null
  . /run/flannel/subnet.env
  put /etc/cni/net.d/10-bridge.conflist <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "mtu": $FLANNEL_MTU,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "${FLANNEL_SUBNET%.*}.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
  mark network
}

# --------------------------------------------------------------------------------------------------- on a worker

worker() { # NAME
  packages gpu
  runtime
  # It asks until the API answers.
  kubeadm join "$HEAD_IP:6443" --token "$TOKEN" --discovery-token-unsafe-skip-ca-verification --node-name "$1" \
    --cri-socket unix:///run/containerd/containerd.sock --ignore-preflight-errors=SystemVerification,Swap >/tmp/kubeadm 2>&1 ||
    failed
  mark joined
  network
}

# ------------------------------------------------------------------------------------------------- on the head

manifests() {
  cat <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: flannel, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: flannel}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [get]}
  - {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flannel}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flannel}
subjects: [{kind: ServiceAccount, name: flannel, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: flannel, namespace: kube-system}
data: {net-conf.json: '{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}'}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: flannel, namespace: kube-system}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      hostNetwork: true
      priorityClassName: system-node-critical
      serviceAccountName: flannel
      tolerations: [{operator: Exists}]
      containers:
        - name: flannel
          image: $FLANNEL
          args: [--ip-masq, --kube-subnet-mgr]
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
          securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}
          volumeMounts: [{name: run, mountPath: /run/flannel}, {name: configuration, mountPath: /etc/kube-flannel}]
      volumes: [{name: run, hostPath: {path: /run/flannel, type: DirectoryOrCreate}}, {name: configuration, configMap: {name: flannel}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvidia-device-plugin, namespace: kube-system}
spec:
  selector: {matchLabels: {app: nvidia-device-plugin}}
  template:
    metadata: {labels: {app: nvidia-device-plugin}}
    spec:
      priorityClassName: system-node-critical
      containers:
        - name: plugin
          image: $PLUGIN
          args: [--device-list-strategy=cdi-cri, --device-discovery-strategy=nvml]
          securityContext: {privileged: true}
          volumeMounts:
            - {name: plugins, mountPath: /var/lib/kubelet/device-plugins}
            - {name: cdi, mountPath: /var/run/cdi}
            - {name: root, mountPath: /driver-root, readOnly: true}
      volumes:
        - {name: plugins, hostPath: {path: /var/lib/kubelet/device-plugins}}
        - {name: cdi, hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}}
        - {name: root, hostPath: {path: /}}
YAML
}

head_node() {
  packages
  runtime
  put /etc/kubernetes/kubeadm.yaml 0600 <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{token: $TOKEN, ttl: 1h0m0s}]
localAPIEndpoint: {advertiseAddress: $HEAD_IP}
nodeRegistration: {name: $HEAD_NAME, criSocket: "unix:///run/containerd/containerd.sock"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v$VERSION
networking: {podSubnet: 10.244.0.0/16}
---
$KUBELET
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
conntrack: {maxPerCore: 0, min: 0}
YAML
  kubeadm init --config /etc/kubernetes/kubeadm.yaml --ignore-preflight-errors=SystemVerification,Swap >/tmp/kubeadm 2>&1 || failed
  mark "control plane"
  export KUBECONFIG=/etc/kubernetes/admin.conf
  manifests | kubectl apply --filename=- >/dev/null
  network
}

proof() { # a pod on each worker sees its two GPUs
  local name ip
  until kubectl get serviceaccount default >/dev/null 2>&1; do sleep 0.1; done
  while read -r name ip; do
    kubectl create --filename=- >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: proof-$name}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: $name}
  containers:
    - name: main
      image: $IMAGE
      command: [nvidia-smi, -L]
      resources: {limits: {nvidia.com/gpu: 2}}
YAML
  done <<<"$WORKERS"
  while read -r name ip; do
    kubectl wait "--for=jsonpath={.status.phase}=Succeeded" "pod/proof-$name" --timeout=300s >/dev/null
    [ "$(kubectl logs "proof-$name" | grep -c '^GPU ')" = 2 ]
  done <<<"$WORKERS"
  mark "pods have seen their GPUs"
}

# ------------------------------------------------------------------------------------------------------ from here

on() { # IP SCRIPT: run a script there as root; all it needs, the token too, goes through standard input
  {
    echo 'set -euo pipefail; export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8'
    declare -p PROXY AUTHORITY HEAD_NAME HEAD_IP WORKERS VERSION REPOSITORY TOOLKIT_VERSION TOOLKIT_REPOSITORY MIRRORS CGROUPS KUBELET \
      FLANNEL PLUGIN IMAGE TOKEN
    declare -f mark failed put source_of packages runtime network worker manifests head_node proof
    echo "BEGAN=\${EPOCHREALTIME/[.,]/}; main() { $2; }; main </dev/null"
  } | ssh -F none -i "$directory/id_ed25519" -o IdentitiesOnly=yes -o "UserKnownHostsFile=$directory/known_hosts" \
    -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=none "$LOGIN@$1" sudo bash -s
}

children=()
on "$HEAD_IP" "head_node; proof" &
children+=($!)
while read -r name ip; do
  on "$ip" "worker $name" &
  children+=($!)
done <<<"$WORKERS"
for child in "${children[@]}"; do wait "$child"; done
